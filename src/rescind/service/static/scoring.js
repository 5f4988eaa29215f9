/**
 * Lists made on this device from the published release. The same numbers, in the same order, as
 * `rescind.methods.additive._live_release` in Python: one file of vectors is checked on both sides.
 *
 * @typedef {{ids: string[], first: Uint32Array, target: Uint16Array | Uint32Array, weight: Float32Array, popular: Uint32Array}} Weights
 * @typedef {{item: number, because: {item: number, share: number, without: number}[]}} Line
 */
const MAGIC = 'rescind1'
const REASONS = 3
/** Records below which a list shows what is popular: fewer say too little. */
export const FEWEST = 5

/** Read a release file. @param {ArrayBuffer} data @returns {Weights} */
export function read (data) {
  const text = new TextDecoder()
  if (text.decode(data.slice(0, 8)) !== MAGIC) throw new Error('This is not a release file.')
  const length = new DataView(data).getUint32(8, true)
  const head = JSON.parse(text.decode(data.slice(12, 12 + length)))
  let at = 12 + length
  const take = (Kind, count) => {
    const found = new Kind(data, at, count)
    at += found.byteLength + (4 - found.byteLength % 4) % 4
    return found
  }
  const weights = {
    ids: head.items,
    first: take(Uint32Array, head.items.length + 1),
    target: take(head.wide ? Uint32Array : Uint16Array, head.entries),
    weight: take(Float32Array, head.entries),
    popular: take(Uint32Array, head.popular)
  }
  if (at !== data.byteLength) throw new Error('The parts of this release do not fit together.')
  return weights
}

/**
 * Return the k best items that are not owned, each with its reasons.
 * @param {Weights} weights @param {number[]} own places, sorted @param {number} k @returns {Line[]}
 */
export function recommend (weights, own, k = 20) {
  if (own.length < FEWEST) return popular(weights, own, k)
  const { score, best } = bestFor(weights, own, k)
  const parts = summands(weights, own, best)
  const ordered = score.slice().sort()
  const lines = best.map((item, row) => ({
    item,
    because: reasons(parts, row, best.length, own.length).map(({ n, share }) => ({
      item: own[n], share, without: rankWithout(weights, score, ordered, item, own[n])
    }))
  }))
  if (lines.length === k) return lines
  const shown = [...own, ...best]
  return [...lines, ...popular(weights, shown, k - lines.length)]
}

/** Return what most people lend and this person does not have. */
export function popular (weights, own, k) {
  const has = new Set(own)
  const found = []
  for (const item of weights.popular) {
    if (found.length === k) break
    if (!has.has(item)) found.push({ item, because: [] })
  }
  return found
}

/** The best items for somebody who owns these, and all scores. */
function bestFor (weights, own, k) {
  const score = scores(weights, own)
  for (const item of own) score[item] = -Infinity
  return { score, best: bestOf(score, k) }
}

function scores ({ first, target, weight }, own) {
  const score = new Float32Array(first.length - 1)
  for (const item of own) {
    for (let e = first[item], end = first[item + 1]; e < end; e++) score[target[e]] += weight[e]
  }
  return score
}

/** The best items with a score above 0, best first; of equals the lower item first. */
function bestOf (score, k) {
  const best = []
  for (let item = 0; item < score.length; item++) {
    if (!(score[item] > 0) || (best.length === k && score[item] <= score[best[k - 1]])) continue
    let at = Math.min(best.length, k - 1)
    for (; at > 0 && score[best[at - 1]] < score[item]; at--) best[at] = best[at - 1]
    best[at] = item
  }
  return best
}

/** What each owned item adds to each listed one: [own, k] in one array. */
function summands ({ first, target, weight }, own, best) {
  const place = new Int32Array(first.length - 1)
  best.forEach((item, row) => { place[item] = row + 1 })
  const parts = new Float32Array(own.length * best.length)
  own.forEach((item, n) => {
    for (let e = first[item], end = first[item + 1]; e < end; e++) {
      const row = place[target[e]]
      if (row) parts[n * best.length + row - 1] = weight[e]
    }
  })
  return parts
}

/** The owned items that add most to one listed item, and their shares of all that adds to it. */
function reasons (parts, row, width, count) {
  const chosen = []
  let total = 0
  for (let n = 0; n < count; n++) {
    const value = parts[n * width + row]
    if (value <= 0) continue
    total += value
    let at = chosen.length
    while (at > 0 && chosen[at - 1].share < value) at--
    if (at < REASONS) chosen.splice(at, 0, { n, share: value })
    if (chosen.length > REASONS) chosen.pop()
  }
  return chosen.map(({ n, share }) => ({ n, share: Math.fround(share / Math.max(total, 1e-30)) }))
}

/** The rank that a listed item would have without one owned item, which stays out of the list. */
function rankWithout ({ first, target, weight }, score, ordered, item, owned) {
  const begin = first[owned]
  const end = first[owned + 1]
  let mine = score[item]
  for (let e = begin; e < end; e++) if (target[e] === item) mine = Math.fround(mine - weight[e])
  let above = ordered.length - firstAbove(ordered, mine)
  for (let e = begin; e < end; e++) {
    if (target[e] === item) continue
    const there = score[target[e]]
    above += Number(Math.fround(there - weight[e]) > mine) - Number(there > mine)
  }
  return above + 1 - Number(score[item] > mine)
}

function firstAbove (ordered, value) {
  let low = 0
  let high = ordered.length
  while (low < high) {
    const middle = (low + high) >> 1
    if (ordered[middle] <= value) low = middle + 1
    else high = middle
  }
  return low
}

/**
 * Return how many titles of a list made from what is lent would be others if nothing were lent.
 * @param {Weights} weights @param {number[]} lent places, sorted @param {number} k
 */
export function worthOfLending (weights, lent, k = 20) {
  if (lent.length < FEWEST) return 0
  const plain = new Set(popular(weights, lent, k).map(line => line.item))
  const { best } = bestFor(weights, lent, k)
  const rest = popular(weights, [...lent, ...best], k - best.length).map(line => line.item)
  return [...best, ...rest].filter(item => !plain.has(item)).length
}
