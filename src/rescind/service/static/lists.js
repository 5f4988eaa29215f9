/** The release in service, kept by this browser, and lists made from it. */
import { bytes, get, hex } from './api.js'
import { canCheck, rebuiltBy } from './check.js'
import { CANNOT } from './log.js'
import { FEWEST, popular, read, recommend, worthOfLending } from './scoring.js'
import { when } from './words.js'

const FACT = 'release'
const LENGTH = 20

/**
 * @typedef {{kind: 'release' | 'popular' | 'catalogue' | 'service', lines: any[], ms: number, worth?: {others: number, of: number, lent: number}}} List
 */

/** Return the release that is served: the one at hand, from this browser, or fetched and checked by its digest. */
export async function loadRelease (device, facts, before) {
  const now = facts.current
  if (facts.rules.instant) return { about: null, instant: true, answer: await get('/v1/me/recommendations') }
  if (!now) return { about: null }
  if (before?.about?.digest === now.digest) return { ...before, about: now, rebuilt: await rebuilt(now) }
  let kept = await device.get('facts', FACT)
  if (kept?.digest !== now.digest) {
    const data = (await bytes(`/v1/release/${now.digest}`)).buffer
    const found = 'sha256:' + hex(new Uint8Array(await crypto.subtle.digest('SHA-256', data)))
    if (found !== now.digest) throw new Error('The release is not what its digest says.')
    kept = { digest: now.digest, data }
    await device.put('facts', kept, FACT)
  }
  return { about: now, weights: read(kept.data), rebuilt: await rebuilt(now) }
}

/** Say whether a second party made the release that this browser uses from the published sum, too. */
async function rebuilt ({ rebuilt: notes, digest }) {
  const nobody = 'Nobody but the service has shown that this release follows from the published sum.'
  if (!notes?.length) return nobody
  if (!await canCheck()) return CANNOT
  const { witnesses } = await get('/v1/keys')
  try {
    const by = await rebuiltBy(notes, witnesses, digest)
    const names = by.map(([name, at]) => `${name} on ${when(at)}`).join(', ')
    return names ? `Solved again from the published sum, with the same weights: signed by ${names}.` : nobody
  } catch (error) {
    return `Who solved this release again does not verify. ${error.message}`
  }
}

/** Make the list of everything that somebody has here. @returns {List} */
export function ranked (release, catalogue, records, lent) {
  const start = performance.now()
  if (release.instant) return fromService(release.answer)
  const own = catalogue.places(records.filter(one => !one.unused).map(one => one.id))
  const has = new Set(catalogue.places(records.map(one => one.id)))
  if (!release.weights) {
    const lines = catalogue.items.filter((_, n) => !has.has(n)).slice(0, LENGTH)
    return { kind: 'catalogue', lines: lines.map(item => ({ ...item, because: [] })), ms: 0 }
  }
  const kind = own.length < FEWEST ? 'popular' : 'release'
  const found = kind === 'popular'
    ? popular(release.weights, [...has], LENGTH)
    : recommend(release.weights, own, LENGTH + has.size - own.length)
  // What was left out of lists is still known to its owner.
  const lines = found.filter(line => !has.has(line.item)).slice(0, LENGTH).map(line => ({
    ...catalogue.items[line.item],
    because: line.because.map(one => ({ ...catalogue.items[one.item], share: one.share, without: one.without }))
  }))
  const ms = performance.now() - start
  const places = catalogue.places([...lent])
  const worth = { others: worthOfLending(release.weights, places, LENGTH), of: LENGTH, lent: places.length }
  return { kind, lines, ms, worth }
}

/** Where every change shows at once there is no release to fetch: the service makes the list. */
function fromService (answer) {
  return { kind: answer.kind === 'popular' ? 'popular' : 'service', lines: answer.items, ms: 0 }
}
