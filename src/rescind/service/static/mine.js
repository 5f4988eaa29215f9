/**
 * Check a receipt here: its signature and place in the log, that it is about what this browser asked
 * for, and that the log is the one this browser saw before.
 */
import { bytes } from './api.js'
import { canCheck, check, leafHash, openNote, rootOf } from './check.js'
import { CANNOT, LONGER, consistencyPath, growsFrom, inclusionPath, pinnedKeys } from './log.js'
import { when } from './words.js'

const utf8 = new TextEncoder()
const fromHex = text => Uint8Array.from(text.match(/../g), pair => parseInt(pair, 16))

/** What an entry of the log commits to; the same bytes as in Python (`proof.changes`). */
export function statement (kind, items, time, seq) {
  return utf8.encode(JSON.stringify({ items, kind, seq, time }))
}

/** Return the entry of a change under the opening that only the person has. */
export async function entryOf ({ kind, time, seq, opening }, items) {
  const key = await crypto.subtle.importKey('raw', fromHex(opening), { name: 'HMAC', hash: 'SHA-256' }, false, ['sign'])
  const digest = await crypto.subtle.sign('HMAC', key, statement(kind, items, time, seq))
  return new Uint8Array([1, ...new Uint8Array(digest)])
}

/** Say who else signed that the log holds a receipt, and what that adds. @param {Map<string, Date>} seen */
export function witnessed (seen) {
  if (!seen.size) return ['no witness has signed this log yet: until one does, only who saw it before, as this browser, can notice if it changes its past']
  return Array.from(seen, ([name, at]) =>
    `seen by ${name} on ${when(at)}: a witness that this service names, which signs only a log that still holds all that it saw before`)
}

/**
 * @param {any} device @param {string} path of the request or its link
 * @param {{acknowledgement: any, items: string[]} | undefined} mine
 * @returns {Promise<{good: boolean | null, lines: string[], not: string[]}>}
 */
export async function checkHere (device, path, mine, place) {
  if (!await canCheck()) {
    const says = 'Save the checker below and open it in a newer browser, or use “rescind verify”.'
    return { good: null, lines: [CANNOT, says], not: [] }
  }
  const lines = []
  try {
    const { pinned, now } = await pinnedKeys(device)
    const [receipt, proof] = await Promise.all([bytes(`${path}/receipt`), bytes(`${path}/proof`)])
    const found = await check(receipt, new TextDecoder().decode(proof), { receipts: pinned.receipts, log: pinned.log, known: now.witnesses })
    lines.push('signed by the operator whose key this browser trusted when it first came here')
    lines.push(`entry ${(found.index + 1).toLocaleString('en')} of ${found.size.toLocaleString('en')} in the log`)
    lines.push(...witnessed(found.seen))
    if (mine?.acknowledgement) lines.push(await about(found, mine, place))
    const kept = await device.get('facts', 'checkpoint')
    if (kept) lines.push(await consistent(kept, found, pinned.log))
    return { good: true, lines, not: found.receipt.not_covered }
  } catch (error) {
    return { good: false, lines: [...lines, error.message], not: [] }
  }
}

/** Check that the receipt names the entry of this browser's own request, and that the log has it. */
async function about ({ receipt, size, root }, { acknowledgement, items }, place) {
  if (receipt.claims['log entry'] !== String(acknowledgement.leaf)) throw new Error('The receipt is about another request.')
  const ordered = [...items].sort((a, b) => place.get(a) - place.get(b))
  const entry = await entryOf(acknowledgement, ordered)
  const path = await inclusionPath(acknowledgement.leaf, size)
  const found = await rootOf(await leafHash(entry), acknowledgement.leaf, size, path)
  if (String(found) !== String(root)) throw new Error('The log does not hold what this browser asked for.')
  return `about exactly ${items.length === 1 ? 'the record' : `the ${items.length} records`} that you took back`
}

async function consistent (kept, found, key) {
  const before = await openNote(kept, key)
  const [old, now] = before.size <= found.size ? [before, found] : [found, before]
  const grows = await growsFrom(old.size, old.root, now.size, now.root, await consistencyPath(old.size, now.size))
  if (!grows) throw new Error('It is from another history of the log than the one this browser saw.')
  if (found.size > before.size) dispatchEvent(new Event(LONGER)) // or the page would tell two sizes
  return 'consistent with the log that this browser saw before'
}
