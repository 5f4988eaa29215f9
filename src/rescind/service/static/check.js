/**
 * Check a receipt and its proof with nothing but this file and the browser's own WebCrypto.
 *
 * A receipt is text in one canonical form; its signature (Ed25519) is over the same text without
 * the line "signature". Its entry in the log is 02 and the SHA-256 of its bytes. A proof
 * (c2sp.org/tlog-proof) leads from the entry to the root that the log has signed.
 */
const utf8 = new TextEncoder()
const hexBytes = text => Uint8Array.from(text.match(/../g) ?? [], pair => parseInt(pair, 16))
export const same = (a, b) => a.length === b.length && a.every((byte, n) => byte === b[n])
export const sha256 = async (...parts) => new Uint8Array(await crypto.subtle.digest('SHA-256', join(...parts)))
export const node = (left, right) => sha256([1], left, right)

/** @param {...(Uint8Array | number[])} parts */
export function join (...parts) {
  const out = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0))
  parts.reduce((at, part) => (out.set(part, at), at + part.length), 0)
  return out
}

/** Read base64 that is written in the one way it can be. */
export function base64 (text) {
  const raw = Uint8Array.from(atob(text), c => c.charCodeAt(0))
  if (btoa(String.fromCharCode(...raw)) !== text) throw new Error('This is not base64 as it is written here.')
  return raw
}

/** Whether this browser can check signatures of this kind. */
export async function canCheck () {
  try {
    await crypto.subtle.importKey('raw', new Uint8Array(32), 'Ed25519', false, ['verify'])
    return true
  } catch { return false }
}

async function signedBy (key, signature, message) {
  const known = await crypto.subtle.importKey('raw', key, 'Ed25519', false, ['verify'])
  return crypto.subtle.verify('Ed25519', known, signature, message)
}

/** Return the hash of a log's entry. @param {Uint8Array} entry */
export const leafHash = entry => sha256([0], entry)

/** Return the root that a proof of inclusion gives, or null (RFC 9162, 2.1.3.2). */
export async function rootOf (leaf, index, size, path) {
  if (!(index >= 0 && index < size)) return null
  let [here, last, root] = [index, size - 1, leaf]
  for (const one of path) {
    if (!last) return null
    if (here % 2 || here === last) {
      root = await node(one, root)
      while (here % 2 === 0 && here) [here, last] = [Math.floor(here / 2), Math.floor(last / 2)]
    } else root = await node(root, one)
    ;[here, last] = [Math.floor(here / 2), Math.floor(last / 2)]
  }
  return last ? null : root
}

const [LOG, WITNESS] = [1, 4]
const OF = { [LOG]: 'a log', [WITNESS]: 'a witness' }

/** A key that is no key of its kind. It is the reader's own: it says nothing about a receipt. */
export class NotThatKey extends Error {}

/** Read NAME+ID+KEY, the public key of a log (kind 1) or of a witness (kind 4). They look alike. */
export async function readKey (text, kind) {
  const whole = text.trim().replace(/^witness /, '') // `rescind witness` prints a word before it
  const [name, id, ...rest] = whole.split('+')
  let raw = new Uint8Array()
  try { raw = base64(rest.join('+')) } catch { /* refused below */ }
  const digest = await sha256(utf8.encode(`${name}\n`), raw)
  const is = raw.length === 33 && same(digest.slice(0, 4), hexBytes(id)) && raw[0]
  if (is !== kind) {
    const other = OF[is] ? `It is the key of ${OF[is]}.` : 'Expected NAME+ID+KEY on one line.'
    throw new NotThatKey(`“${whole.slice(0, 80)}” is not the key of ${OF[kind]}. ${other} Ask whoever runs ${kind === LOG ? 'the log' : 'the witness'} for it.`)
  }
  return { whole, name, id: digest.slice(0, 4), kind, raw: raw.slice(1) }
}

/**
 * Open a signed checkpoint: the log and all `required` witnesses must have signed it. Returns size,
 * root, and when each witness saw it; of those in `known`, whoever did.
 */
export async function openNote (note, logKey, required = [], known = []) {
  const log = await readKey(logKey, LOG)
  const [witnesses, others] = await Promise.all([required, known].map(keysOf))
  const { text, seen } = await signers(note, [log, ...witnesses, ...others])
  const body = text.split('\n')
  if (body.length !== 4 || body[0] !== log.name || !/^(0|[1-9]\d{0,14})$/.test(body[1])) {
    throw new Error('This is not a checkpoint of the log that you trust.')
  }
  const missing = [log, ...witnesses].filter(key => !seen.has(key.whole)) // by key: a name alone shows nothing
  if (missing.length) throw new Error(`The checkpoint is not signed by ${missing.map(key => key.name).join(', ')}.`)
  seen.delete(log.whole)
  const root = base64(body[2])
  if (root.length !== 32) throw new Error('The root of the checkpoint has another length.')
  return { size: Number(body[1]), root, seen: new Map(seen.values()) }
}

const keysOf = keys => Promise.all(keys.map(key => readKey(key, WITNESS)))

/** Return who of these keys signed a note when, and its text. A wrong signature of theirs is an error. */
async function signers (note, keys) {
  const cut = note.lastIndexOf('\n\n')
  const [text, lines] = [note.slice(0, cut + 1), note.slice(cut + 2).split('\n')]
  if (cut < 0 || lines.pop() !== '') throw new Error('This is not a checkpoint of the log that you trust.')
  const seen = new Map()
  for (const line of lines) {
    const [, name, raw] = line.match(/^— ([^\s+]+) ([A-Za-z0-9+/=]+)$/) ?? []
    if (!name) throw new Error('A line below the checkpoint is not a signature.')
    const bytes = base64(raw)
    const key = keys.find(one => one.name === name && same(one.id, bytes.slice(0, 4)))
    if (!key) continue
    const skip = key.kind === WITNESS ? 12 : 4
    const at = Number(new DataView(join([0, 0, 0, 0, 0, 0, 0, 0], bytes.slice(4, skip)).buffer).getBigUint64(skip - 4))
    const message = key.kind === WITNESS ? `cosignature/v1\ntime ${at}\n${text}` : text
    if (seen.has(key.whole) || !await signedBy(key.raw, bytes.slice(skip), utf8.encode(message))) {
      throw new Error(`The signature of ${name} does not fit what it signed.`)
    }
    seen.set(key.whole, [name, new Date(1000 * at)])
  }
  return { text, seen }
}

/** Return who of these witnesses solved the release with this digest again, and signed that: names and times. */
export async function rebuiltBy (notes, witnesses, digest) {
  const [keys, found] = [await keysOf(witnesses), []]
  for (const note of notes) {
    const { text, seen } = await signers(note, keys)
    const [head, body] = text.split('\n')
    if (head === 'what was rebuilt, of rescind' && JSON.parse(body).weights === digest) found.push(...seen.values())
  }
  return found
}

/** Open a proof: the place of the entry, the hashes beside its way up, the checkpoint. */
export function openProof (text) {
  const cut = text.indexOf('\n\n')
  const [head, index, ...path] = text.slice(0, cut).split('\n')
  const place = index?.match(/^index (0|[1-9]\d{0,14})$/)
  const hashes = path.map(base64)
  if (cut < 0 || head !== 'c2sp.org/tlog-proof@v1' || !place || path.length > 63 || hashes.some(one => one.length !== 32)) {
    throw new Error('This is not a proof as receipts have it.')
  }
  return { index: Number(place[1]), path: hashes, note: text.slice(cut + 2) }
}

/** Check the signature of a receipt; return what it says. @param {Uint8Array} data */
export async function openReceipt (data, operatorKey) {
  const text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(data)
  if (text.startsWith('c2sp.org/tlog-proof@')) throw new Error('This is a proof: it belongs into the second field, and the receipt (.json) into the first.')
  const signatures = [...text.matchAll(/^ "signature": "ed25519:([0-9a-f]{128})",\n/gm)]
  const keys = [...text.matchAll(/^ "public_key": "(ed25519:[0-9a-f]{64})",\n/gm)]
  if (signatures.length !== 1 || keys.length !== 1) throw new Error('This file is no signed receipt in its one form. Was it receipt.json?')
  const receipt = JSON.parse(text)
  const signed = utf8.encode(text.replace(signatures[0][0], ''))
  if (!await signedBy(hexBytes(keys[0][1].slice(8)), hexBytes(signatures[0][1]), signed)) {
    throw new Error('Its signature does not fit: the receipt was changed.')
  }
  if (!operatorKey.trim()) throw new Error(`No operator's key was given. It is signed by ${keys[0][1]}: is that the key of the operator?`)
  if (keys[0][1] !== operatorKey.trim()) throw new Error(`It is signed by another key, ${keys[0][1]}.`)
  return receipt
}

const OTHER_PROOF = 'The receipt is not at this place of the log: the proof belongs to another receipt, or was changed. ' +
  'The receipt itself is unchanged, and signed by the key that you trust. Look for the .tlog-proof that came with it.'

/**
 * Check a receipt with its proof. Throws an error that says what is wrong.
 * @param {Uint8Array} data @param {string} proof @param {{receipts: string, log: string, witnesses?: string[], known?: string[]}} keys
 */
export async function check (data, proof, keys) {
  const receipt = await openReceipt(data, keys.receipts)
  const { index, path, note } = openProof(proof)
  const { size, root, seen } = await openNote(note, keys.log, keys.witnesses, keys.known)
  const entry = join([2], await sha256(data))
  const found = await rootOf(await leafHash(entry), index, size, path)
  if (!found || !same(found, root)) throw new Error(OTHER_PROOF)
  return { receipt, index, size, root, seen, note }
}
