/**
 * This browser as a witness: it keeps the last checkpoint it saw, and at every visit (and when a
 * receipt shows that the log is longer) asks whether the log has only grown since. Two checkpoints that contradict each other are a fork: the operator
 * has shown two histories, and signed both. A shorter log contradicts nothing: an honest older copy
 * and a log that was cut look alike, so it is told and not taken for a fork.
 *
 * @typedef {{state: 'new' | 'same' | 'grown' | 'older' | 'fork' | 'keys' | 'unknown', says: string, evidence?: any, size?: number, at?: string}} Seen
 */
import { Unanswered, bytes, get } from './api.js'
import { canCheck, node, openNote, same } from './check.js'

const TILE = 256
const POINT = 'checkpoint'
const FORK = 'fork'
const KEYS = 'keys'
/** Told to the page when a receipt comes from a longer log than this browser has seen. */
export const LONGER = 'longer-log'
export const CANNOT = 'This browser cannot check signatures of this kind (Ed25519).'

/** Return the keys that this browser trusted when it first came here. */
export async function pinnedKeys (device) {
  const now = await get('/v1/keys')
  const kept = await device.get('facts', KEYS)
  if (!kept) await device.put('facts', now, KEYS)
  return { pinned: kept ?? now, now }
}

/** @type {Promise<any>} The look before this one: if it ended later, the page would show a shorter log. */
let lastLook = Promise.resolve()

/** Compare the log with what this browser saw before, after any look that began earlier. @returns {Promise<Seen>} */
export function look (device) {
  const mine = lastLook.then(() => lookNow(device))
  lastLook = mine.catch(() => {})
  return mine
}

async function lookNow (device) {
  const known = await device.get('facts', FORK)
  if (known) return known
  if (!await canCheck()) return { state: 'unknown', says: `${CANNOT} So it does not watch the log.` }
  const { pinned, now } = await pinnedKeys(device)
  if (pinned.log !== now.log || pinned.receipts !== now.receipts) {
    const says = 'This service signs with other keys than when you first came here. Ask its operator why, from another source.'
    return { state: 'keys', says, evidence: { pinned, now } }
  }
  const kept = await device.get('facts', POINT)
  const note = new TextDecoder().decode(await bytes('/log/checkpoint'))
  let seen
  try {
    seen = await compared(kept, note, pinned.log)
  } catch (error) {
    if (error instanceof Unanswered || error.status) throw error
    seen = { state: 'fork', says: `What the log says about itself does not verify. ${error.message}` }
  }
  seen.at = new Date().toISOString()
  if (seen.state === 'fork' || seen.state === 'older') {
    seen.evidence = { log_key: pinned.log, seen_before: kept, shown_now: note, at: seen.at }
  }
  if (seen.state === 'fork') await device.put('facts', seen, FORK)
  else if (seen.state !== 'older') await device.put('facts', note, POINT) // the longer one knows more
  return seen
}

/** @param {string | undefined} kept @param {string} note @param {string} key @returns {Promise<Seen>} */
async function compared (kept, note, key) {
  const now = await openNote(note, key)
  if (!kept) return { state: 'new', size: now.size, says: `The log has ${now.size.toLocaleString()} entries. This browser will notice if it ever changes its past.` }
  const before = await openNote(kept, key)
  if (now.size < before.size) {
    const says = `This copy of the log has ${now.size.toLocaleString()} entries, and you saw ${before.size.toLocaleString()} before: it is older. ` +
      'This shows nothing about two histories. Come back later; if it still has fewer then, the log was cut: save what you saw.'
    return { state: 'older', size: now.size, says }
  }
  const grown = await growsFrom(
    before.size, before.root, now.size, now.root, await consistencyPath(before.size, now.size))
  if (!grown) {
    const says = 'The log shows another history than the one this browser saw before. Both are signed by the operator.'
    return { state: 'fork', says }
  }
  const more = now.size - before.size
  return { state: more ? 'grown' : 'same', size: now.size, says: `The log has ${now.size.toLocaleString()} entries, ${more.toLocaleString()} more than when this browser last looked, and its past has not changed.` }
}

/** Whether a log of `size` leaves begins with the `old` ones (RFC 9162, 2.1.4.2). */
export async function growsFrom (old, oldRoot, size, root, path) {
  if (!(old > 0 && old < size)) return path.length === 0 && (old === 0 || (old === size && same(oldRoot, root)))
  const proof = Number.isInteger(Math.log2(old)) ? [oldRoot, ...path] : [...path]
  if (!proof.length) return false
  let [here, last] = [old - 1, size - 1]
  while (here % 2) [here, last] = [Math.floor(here / 2), Math.floor(last / 2)]
  let [first, second] = [proof[0], proof[0]]
  for (const one of proof.slice(1)) {
    if (!last) return false
    if (here % 2 || here === last) {
      first = await node(one, first)
      second = await node(one, second)
      while (here % 2 === 0 && here) [here, last] = [Math.floor(here / 2), Math.floor(last / 2)]
    } else second = await node(second, one)
    ;[here, last] = [Math.floor(here / 2), Math.floor(last / 2)]
  }
  return !last && same(first, oldRoot) && same(second, root)
}

/** The proof that the log of `size` leaves begins with the first `old`, from its tiles. */
export async function consistencyPath (old, size) {
  const hash = hashes(size)
  const since = async (start, end, known) => {
    if (old === end) return known ? [] : [await hash(start, end)]
    const middle = start + left(end - start)
    if (old <= middle) return [...await since(start, middle, known), await hash(middle, end)]
    return [...await since(middle, end, false), await hash(start, middle)]
  }
  return old && old < size ? since(0, size, true) : []
}

/** The proof that a leaf is in the log of this size, from its tiles. */
export async function inclusionPath (index, size) {
  const hash = hashes(size)
  const path = async (start, end) => {
    if (end - start === 1) return []
    const middle = start + left(end - start)
    if (index < middle) return [...await path(start, middle), await hash(middle, end)]
    return [...await path(middle, end), await hash(start, middle)]
  }
  return path(0, size)
}

const left = count => 2 ** Math.ceil(Math.log2(count) - 1)

/** Return a function that gives the hash over leaves start to end, as the tiles state it. */
function hashes (size) {
  const tiles = new Map()
  const tile = (level, index) => {
    const name = `${level}/${index}`
    if (!tiles.has(name)) tiles.set(name, bytes(tilePath(level, index, Math.floor(size / TILE ** level))))
    return tiles.get(name)
  }
  const over = async (start, end) => {
    const count = end - start
    const height = Math.log2(count)
    if (Number.isInteger(height) && height % 8 === 0) {
      const level = height / 8
      const place = start / count
      const from = 32 * (place % TILE)
      return (await tile(level, Math.floor(place / TILE))).slice(from, from + 32)
    }
    const middle = start + left(count)
    return node(await over(start, middle), await over(middle, end))
  }
  return over
}

/** Where a tile is served; a tile at the edge is named with its width. */
export function tilePath (level, index, available) {
  const digits = String(index).padStart(3 * Math.ceil(String(index).length / 3), '0')
  const parts = digits.match(/.../g)
  const name = parts.map((part, n) => n < parts.length - 1 ? `x${part}` : part).join('/')
  const width = Math.min(TILE, available - TILE * index)
  return `/log/tile/${level}/${name}${width < TILE ? `.p/${width}` : ''}`
}
