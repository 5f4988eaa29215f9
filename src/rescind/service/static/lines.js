/**
 * Find a person's own lines in the log: does the newest roster count them? Every entry of the log is
 * read and hashed up to the root that the log has signed, so none can be left out or put in here.
 */
import { Refused, bytes, get } from './api.js'
import { canCheck, join, leafHash, node, openNote, same, sha256 } from './check.js'
import { CANNOT, pinnedKeys, tilePath } from './log.js'

const [LINE, REVOKED, ROSTER] = [5, 6, 7]
const BUNDLE = 256
const MOST = 250_000
const hex = data => Array.from(data, byte => byte.toString(16).padStart(2, '0')).join('')
/** What this check leaves open, whatever it finds. */
export const OPEN = [
  'That the line is made of your records, and that all lines add up to the published sum: save your lines, then “rescind roster fetch” and “rescind roster check --mine”.',
  'That the lists you get were made from that sum: below them it says who else solved that.'
]

/** @returns {Promise<{good: boolean | null, says: string[], lines: any[]}>} */
export async function findLines (device) {
  if (!await canCheck()) return { good: null, says: [CANNOT], lines: [] }
  let lines = []
  try {
    lines = (await get('/v1/me/lines')).lines
    const stated = await bytes('/log/roster/release.json')
    if (!lines.length) return { good: null, says: ['You have no line now: what you lend changed since the last roster, or you lend nothing.'], lines }
    const { size, root, kept } = await trusted(device)
    if (size > MOST) return { good: null, says: ['The log is too long to be read here. Save your lines and use “rescind roster check --mine”.'], lines }
    const entries = await entriesOf(size)
    const leaves = await Promise.all(entries.map(leafHash))
    if (!same(await rootOver(leaves), root)) throw new Error('The entries of the log are not those that it has signed.')
    if (kept && (kept.size > size || !same(await rootOver(leaves.slice(0, kept.size)), kept.root))) {
      throw new Error('It is another history of the log than the one this browser saw.')
    }
    const says = counted(entries, hex(await sha256(stated)), JSON.parse(new TextDecoder().decode(stated)).lines, lines.map(one => one.line))
    return { good: true, says, lines }
  } catch (error) {
    if (error instanceof Refused && error.status === 404) return { good: null, says: [error.message], lines }
    return { good: false, says: [error.message], lines }
  }
}

/**
 * Return what holds of these lines, or throw what does not.
 * @param {Uint8Array[]} entries of the log @param {string} stated digest of the newest statement
 * @param {number} number of lines that it states @param {string[]} mine digests of own lines
 */
export function counted (entries, stated, number, mine) {
  const names = entries.map(hex)
  const place = entries.findLastIndex(one => one[0] === ROSTER)
  if (place < 0 || names[place].slice(2) !== stated) throw new Error('The roster is not the newest one in the log. Try again.')
  const live = new Map()
  for (const [n, name] of names.slice(0, place).entries()) {
    if (entries[n][0] === LINE && !live.has(name.slice(2))) live.set(name.slice(2), n)
  }
  for (const [n, name] of names.slice(0, place).entries()) if (entries[n][0] === REVOKED) live.delete(name.slice(2))
  if (live.size !== number) throw new Error(`The log counts ${live.size} lines, and the roster states ${number}.`)
  return mine.map(line => {
    if (!live.has(line)) throw new Error(`Your line ${line.slice(0, 16)} is not among those that the log counts.`)
    return `Your line ${line.slice(0, 16)} is entry ${(live.get(line) + 1).toLocaleString('en')} of the log, one of ${number.toLocaleString('en')} lines that count.`
  })
}

async function trusted (device) {
  const { pinned } = await pinnedKeys(device)
  const before = await device.get('facts', 'checkpoint')
  const kept = before && await openNote(before, pinned.log)
  return { ...await openNote(new TextDecoder().decode(await bytes('/log/checkpoint')), pinned.log), kept }
}

async function entriesOf (size) {
  const entries = []
  for (let index = 0; index * BUNDLE < size; index++) {
    const data = await bytes(tilePath('entries', index, size))
    for (let at = 0; at < data.length;) {
      const length = 256 * data[at] + data[at + 1]
      entries.push(data.slice(at + 2, at += 2 + length))
    }
  }
  return entries
}

/** The root over leaves (RFC 6962): pairs are joined, level by level; one without a partner goes up. */
export async function rootOver (leaves) {
  let level = leaves
  if (!level.length) return sha256(join())
  while (level.length > 1) {
    const pairs = Array.from({ length: Math.ceil(level.length / 2) }, (_, n) => level.slice(2 * n, 2 * n + 2))
    level = await Promise.all(pairs.map(([left, right]) => right ? node(left, right) : left))
  }
  return level[0]
}
