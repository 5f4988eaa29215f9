/**
 * Calls to the service: JSON in and out, errors that say what to do next, one effect for a change
 * however often it is sent.
 *
 * @typedef {{status: number, body: any, etag: string | null, replayed: boolean}} Answer
 * @typedef {{type: string, title: string, status: number, detail: string, next: string, item?: string}} Problem
 * @typedef {{body?: any, key?: string, headers?: Record<string, string>, signal?: AbortSignal}} More
 */

/** A refusal of the service (RFC 9457). */
export class Refused extends Error {
  /** @param {Problem} problem @param {number} wait seconds after which it may be sent again, or 0 */
  constructor (problem, wait) {
    super(problem.detail)
    this.problem = problem
    this.status = problem.status
    this.kind = problem.type.replace('urn:rescind:problem:', '')
    this.wait = wait
  }

  /** Whether the same request may succeed later, as it is. */
  get later () {
    return [429, 502, 503, 504, 507].includes(this.status) || this.kind === 'still-running'
  }
}

/** Nobody answered: it is not known whether the request arrived. */
export class Unanswered extends Error {}

/** Return a new Idempotency-Key: 32 hexadecimal digits. */
export function newKey () {
  return hex(crypto.getRandomValues(new Uint8Array(16)))
}

/** Return a new key of a receipt: 64 hexadecimal digits. */
export const newSecret = () => hex(crypto.getRandomValues(new Uint8Array(32)))

/** @param {Uint8Array} bytes */
export function hex (bytes) {
  return Array.from(bytes, byte => byte.toString(16).padStart(2, '0')).join('')
}

/**
 * Send one request. Throws `Refused` or `Unanswered`.
 * @param {string} method @param {string} path @param {More} [more] @returns {Promise<Answer>}
 */
export async function call (method, path, more = {}) {
  const headers = { Accept: 'application/json', ...more.headers }
  const options = { method, headers, signal: more.signal, credentials: 'same-origin' }
  if (method !== 'GET') {
    headers['Content-Type'] = 'application/json'
    options.body = JSON.stringify(more.body ?? {})
  }
  if (more.key) headers['Idempotency-Key'] = more.key
  const response = await answered(path, options)
  const same = response.status === 304
  if (!response.ok && !same) throw new Refused(await problemOf(response), waitOf(response))
  const body = same ? null : await response.json()
  return {
    status: response.status,
    body,
    etag: response.headers.get('etag'),
    replayed: response.headers.get('idempotent-replay') === 'true'
  }
}

/** @param {string} path @param {More} [more] @returns {Promise<any>} what a GET answers */
export async function get (path, more) {
  return (await call('GET', path, more)).body
}

/**
 * Fetch bytes or text, such as a receipt, byte for byte.
 * @param {string} path @returns {Promise<Uint8Array>}
 */
export async function bytes (path) {
  const response = await answered(path, { credentials: 'same-origin', headers: { Accept: '*/*' } })
  if (!response.ok) throw new Refused(await problemOf(response), waitOf(response))
  return new Uint8Array(await response.arrayBuffer())
}

/**
 * Send a change until it is answered, with the same key each time.
 * @param {string} method @param {string} path @param {any} body @param {number} [tries]
 */
export async function once (method, path, body, tries = 4) {
  const key = newKey()
  for (let n = 1; ; n++) {
    try {
      return await call(method, path, { body, key })
    } catch (error) {
      const later = error instanceof Unanswered || (error instanceof Refused && error.later)
      if (!later || n === tries) throw error
      await pause(pauseAfter(n, error.wait))
    }
  }
}

/** Return the seconds to wait before another try. @param {number} n @param {number} [asked] */
export function pauseAfter (n, asked = 0) {
  return Math.max(asked, Math.min(60, 2 ** n))
}

/** @param {number} seconds */
export const pause = seconds => new Promise(resolve => setTimeout(resolve, 1000 * seconds))

async function answered (path, options) {
  try {
    return await fetch(path, options)
  } catch (error) {
    if (error.name === 'AbortError') throw error
    throw new Unanswered('The service cannot be reached.')
  }
}

const waitOf = response => Number(response.headers.get('retry-after')) || 0

/** @param {Response} response @returns {Promise<Problem>} */
async function problemOf (response) {
  try {
    const found = await response.json()
    if (typeof found.detail === 'string') return found
  } catch { /* a proxy's own page */ }
  const detail = `The service answered ${response.status}.`
  return { type: '', title: '', status: response.status, detail, next: 'Try again later.' }
}
