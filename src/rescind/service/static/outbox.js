/**
 * Changes that the service has not acknowledged: kept here, sent in order, with the same key each
 * time, by one tab at a time. A change leaves the outbox with its answer and not before.
 *
 * @typedef {{n?: number, key: string, kind: 'lend' | 'unshare' | 'erase', items: string[] | 'everything', path: string, body: any, at: string}} Change
 */
import { Refused, call, newKey, pauseAfter } from './api.js'

const MOST = 5000 // items of one request

/** Split ids into what one request may name. @param {string[]} ids */
export function parts (ids) {
  const out = []
  for (let n = 0; n < ids.length; n += MOST) out.push(ids.slice(n, n + MOST))
  return out
}

export class Outbox {
  /**
   * @param {any} db the person's database
   * @param {string} who
   * @param {{sending: (change: Change) => any, answered: (change: Change, answer: any) => any, refused: (change: Change, error: Refused) => any, moved: () => any, signIn: (error: Refused) => any}} tell
   */
  constructor (db, who, tell) {
    this.db = db
    this.lock = `rescind-outbox-${who}`
    this.tell = tell
    this.tries = 0
    this.timer = 0
  }

  /** @returns {Promise<Change[]>} */
  waiting () { return this.db.getAll('outbox') }

  /** Keep a change, then send it. @param {Omit<Change, 'n' | 'key' | 'at'>} change */
  async put (change) {
    await this.db.add('outbox', { ...change, key: newKey(), at: new Date().toISOString() })
    await this.tell.moved()
    await this.send()
  }

  /** Send what waits, the oldest first, until something does not get through. */
  async send () {
    clearTimeout(this.timer)
    await navigator.locks.request(this.lock, async () => {
      for (let next; (next = await this.first());) {
        if (!await this.sendOne(next)) return
      }
    })
  }

  async first () {
    const cursor = await this.db.transaction('outbox').store.openCursor()
    return cursor?.value
  }

  /** @param {Change} change @returns {Promise<boolean>} whether the next one may be sent */
  async sendOne (change) {
    try {
      await this.tell.sending(change)
      const answer = await call('POST', change.path, { body: change.body, key: change.key })
      this.tries = 0
      await this.tell.answered(change, answer)
      await this.db.delete('outbox', change.n)
    } catch (error) {
      if (error instanceof Refused && error.status === 401) {
        await this.tell.signIn(error)
        return false
      }
      if (error instanceof Refused && !error.later) {
        await this.db.delete('outbox', change.n)
        await this.tell.refused(change, error)
      } else {
        this.timer = setTimeout(() => this.send(), 1000 * pauseAfter(++this.tries, error.wait))
        await this.tell.moved()
        return false
      }
    }
    await this.tell.moved()
    return true
  }
}
