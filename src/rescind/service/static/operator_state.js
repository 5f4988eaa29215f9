/** What the operator's page knows: read from the service, and again whenever it says so. */
import { Refused, get } from './api.js'
import { until } from './times.js'

export const PARTS = ['overview', 'requests', 'releases', 'jobs', 'audits', 'storage', 'witnesses']
const MOVING = ['overview', 'requests', 'releases', 'jobs', 'audits']
const ASKED = { requests: '?open=true&limit=50', releases: '?limit=5', jobs: '?limit=20', audits: '?limit=10' }
const SOON = 1500
const EVERY = 60_000
/** Receipts of a release of many people take some seconds; what takes longer is stuck. */
const WRITING = 60_000

/** Read some parts. @param {string[]} [names] */
export async function read (names = PARTS) {
  const found = await Promise.all(names.map(name => get(`/v1/operator/${name}${ASKED[name] ?? ''}`)))
  const parts = Object.fromEntries(names.map((name, n) => [name, found[n]]))
  if (parts.jobs) parts.rounds = await roundsOf(parts.jobs.jobs[0])
  return parts
}

/** Return the rounds of a generation, the oldest first. */
async function roundsOf (job) {
  if (!job) return []
  try {
    const found = await get(`/v1/operator/jobs/${job.id}/rounds?limit=5000`)
    return found.rounds.reverse()
  } catch (error) {
    if (error instanceof Refused && error.status === 404) return [] // it is gone meanwhile
    throw error
  }
}

/**
 * Follow the service: what moves comes as events; everything is read again now and then.
 * @param {{parts: (parts: any) => void, round: (round: any) => void, failed: (error: Error) => void, live: (live: boolean) => void}} tell
 * @returns {() => void} ends it
 */
export function follow (tell) {
  let timer = 0
  let ended = false
  const again = async names => {
    try {
      const parts = await read(names)
      if (!ended) tell.parts(parts)
    } catch (error) {
      if (!ended) tell.failed(error)
    }
  }
  const soon = () => {
    clearTimeout(timer)
    timer = setTimeout(again, SOON, MOVING)
  }
  const source = new EventSource('/v1/events')
  source.onopen = () => tell.live(true)
  source.onerror = () => tell.live(false)
  for (const name of ['loans', 'request', 'release', 'generation']) source.addEventListener(name, soon)
  source.addEventListener('round', event => tell.round(JSON.parse(event.data)))
  const regular = setInterval(again, EVERY)
  return () => {
    ended = true
    source.close()
    clearTimeout(timer)
    clearInterval(regular)
  }
}

/** Add a round that an event told of. @param {any} known @param {any} told */
export function withRound (known, told) {
  if (known.jobs?.jobs[0]?.id !== told.job) return known
  const rounds = known.rounds.filter(one => one.number !== told.round)
  return { ...known, rounds: [...rounds, { ...told, number: told.round }] }
}

/**
 * Say what an open request waits for, and whether somebody must look at it.
 * @param {any} row @param {any} current the release in service @returns {{word: string, tone: string}}
 */
export function standing (row, current, now = Date.now()) {
  if (!['open', 'in_progress'].includes(row.status)) {
    return { word: row.status, tone: row.status === 'fulfilled' ? 'good' : '' }
  }
  const whole = until(row.expected_by, Date.parse(row.received_at))
  const used = 1 - until(row.expected_by, now) / whole
  if (used >= 1) return { word: 'late', tone: 'bad' }
  if (row.reason === 'need_user_verification') return { word: 'waits for the person', tone: '' }
  if (row.release && now - Date.parse(current.made_at) < WRITING) return { word: 'its receipt is being written', tone: '' }
  if (current && Date.parse(current.made_at) > Date.parse(row.received_at)) {
    return { word: 'stuck', tone: 'bad' } // a release was made since, and it is not in it
  }
  if (used >= 0.8) return { word: 'urgent', tone: 'bad' }
  if (used >= 0.5) return { word: 'half the time is over', tone: 'open' }
  return { word: 'waiting', tone: '' }
}
