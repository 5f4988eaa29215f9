/**
 * What the person's page knows: records of this browser, what the ledger says is lent, changes that
 * are on their way, requests, the release. Components read it; `moved` draws them again.
 */
import { Refused, Unanswered, get, newSecret } from './api.js'
import { loadCatalogue } from './catalogue.js'
import { Helping } from './helping.js'
import { addRecords, openDevice, openPerson, removeRecords } from './keep.js'
import { loadRelease, ranked } from './lists.js'
import { LONGER, look } from './log.js'
import { Outbox, parts } from './outbox.js'
import { signOut } from './passkey.js'

const LOANS = '/v1/me/loans'
const REQUESTS = '/v1/me/requests'

export class Model {
  /** @param {() => void} draw */
  constructor (draw) {
    this.draw = draw
    this.state = 'starting' // starting, out, in, left, broken
    this.role = 'anonymous'
    this.notice = ''
    /** @type {import('./keep.js').Kept[]} */
    this.records = []
    /** @type {Set<string>} */
    this.lent = new Set()
    /** @type {Map<string, string>} item: what is asked for it and not acknowledged yet */
    this.waiting = new Map()
    this.requests = []
    this.mine = new Map() // what this browser kept of each request
    this.release = null
    this.list = null
    this.log = null
    this.online = navigator.onLine
    this.leaving = false
    this.reading = Promise.resolve()
    this.helping = new Helping(this)
  }

  /** Find out who is here and show what they have. */
  async start () {
    try {
      this.device ??= await openDevice()
      this.role = (await get('/v1/session')).role
      if (this.role !== 'person') return this.become('out')
      this.me = await get('/v1/me')
    } catch (error) {
      this.notice = error.message
      return this.become('broken')
    }
    this.db = await openPerson(this.me.name)
    this.outbox = new Outbox(this.db, this.me.name, {
      sending: change => change.again || this.helping.away(change.items),
      answered: (change, answer) => this.answered(change, answer),
      refused: (change, error) => this.refused(change, error),
      moved: () => this.readOutbox(),
      signIn: () => this.signedOut()
    })
    this.catalogue = await loadCatalogue(this.device)
    await this.helping.open()
    await Promise.all([this.readLoans(), this.helping.read(), this.readRequests(), this.readOutbox()])
    this.become('in')
    this.listen()
    await this.lookAtLog()
    await this.refresh()
  }

  say (sentence) {
    this.notice = sentence
    this.draw()
  }

  become (state) {
    this.state = state
    this.draw()
  }

  /** Hear of changes: other tabs, other devices, releases, the network. */
  listen () {
    this.tabs?.close()
    this.tabs = new BroadcastChannel(`rescind-${this.me.name}`)
    this.tabs.onmessage = () => this.refresh(false)
    this.hear()
    if (this.listening) return
    this.listening = true
    addEventListener(LONGER, () => this.state === 'in' && this.lookAtLog())
    for (const name of ['online', 'offline', 'visibilitychange']) {
      addEventListener(name, () => {
        this.online = navigator.onLine
        this.hear()
        this.draw()
        if (this.state === 'in' && this.online && !document.hidden) this.refresh()
      })
    }
  }

  /** Follow the service's events while somebody looks at this page. */
  hear () {
    this.events?.close()
    if (this.state !== 'in' || document.hidden || !navigator.onLine) return
    this.events = new EventSource('/v1/events')
    for (const name of ['loans', 'request', 'release']) this.events.addEventListener(name, () => this.later())
  }

  later () {
    clearTimeout(this.timer)
    this.timer = setTimeout(() => this.refresh(), 250)
  }

  /** Read everything that may have changed, once at a time; the ledger is right. */
  refresh (send = true) {
    this.reading = this.reading.then(() => this.readAll(send))
    return this.reading
  }

  async readAll (send) {
    if (this.state !== 'in' || this.leaving) return
    try {
      await Promise.all([this.readLoans(), this.helping.read(), this.readRequests(), this.readOutbox()])
      await this.readRelease()
      if (send) {
        await this.outbox.send()
        await this.helping.follow()
      }
    } catch (error) {
      if (error instanceof Refused && error.status === 401) this.signedOut()
      else if (!(error instanceof Unanswered) && !error.later) this.say(error.message)
    }
  }

  /** Ask for nothing more: the session is about to end. */
  async settle () {
    this.leaving = true
    clearTimeout(this.timer)
    this.events?.close()
    await this.reading
  }

  async readLoans () {
    const found = []
    for (let next = '0'; next;) {
      const page = await get(`${LOANS}?limit=5000&cursor=${next}`)
      found.push(...page.items)
      next = page.next
    }
    const before = this.lent
    this.lent = new Set(found.map(one => one.id))
    // What is lent and not known here came from another device: it is the person's, so it is shown.
    const added = new Date().toISOString()
    await addRecords(this.db, found.map(({ id, title }) => ({ id, title, at: '', added })))
    if (found.some(one => !before.has(one.id))) await this.helping.away(this.lent)
    await this.readRecords()
  }

  async readRecords () {
    this.records = await this.db.getAll('records')
    this.records.sort((a, b) => a.title.localeCompare(b.title))
    this.makeList()
    this.draw()
  }

  async readRequests () {
    const kept = await this.db.getAll('requests')
    this.mine = new Map(kept.map(one => [one.request_id, one]))
    this.requests = (await get(REQUESTS)).requests
    this.due = await get('/v1/release')
    this.draw()
  }

  async readOutbox () {
    const changes = await this.outbox.waiting()
    this.waiting = new Map(changes.flatMap(({ items, kind }) => items.map(id => [id, kind])))
    this.helping.waiting = changes.some(({ kind }) => kind === 'contribute')
    this.draw()
  }

  async readRelease () {
    this.due = await get('/v1/release')
    this.release = await loadRelease(this.device, this.due, this.release)
    this.makeList()
    this.draw()
  }

  /** Make the list, unless it would be the same: most refreshes change nothing. */
  makeList () {
    if (!this.release) return
    const from = JSON.stringify([this.release, this.records, [...this.lent]], (name, one) => name === 'weights' ? undefined : one)
    if (from !== this.listed) this.list = ranked(this.release, this.catalogue, this.records, this.lent)
    this.listed = from
  }

  async lookAtLog () {
    try {
      this.log = await look(this.device)
    } catch (error) {
      this.log = { state: 'unknown', says: `The log could not be checked now: ${error.message}` }
    }
    this.draw()
  }

  // ---------------------------------------------------------------- what the person does

  async lend (ids) {
    for (const items of parts(ids.filter(id => !this.lent.has(id) && !this.waiting.has(id)))) {
      await this.change({ kind: 'lend', items, path: LOANS, body: { items } })
    }
  }

  /** Whether the sum has a record of this person. @param {string} id */
  counts (id) { return this.lent.has(id) || this.helping.sent.has(id) }

  /** @param {string[]} ids @param {'unshare' | 'erase'} kind @param {boolean} [again] whether they may help again */
  async takeBack (ids, kind = 'unshare', again = false) {
    for (const items of parts(ids.filter(id => this.counts(id) && !this.waiting.has(id)))) {
      await this.change({ kind, items, again, path: REQUESTS, body: { kind, items, receipt_key: newSecret() } })
    }
  }

  /** Mark at once, so that a second click finds it marked; then keep and send. */
  async change (change) {
    for (const id of change.items) this.waiting.set(id, change.kind)
    this.notice = ''
    this.draw()
    await this.outbox.put(change)
  }

  async answered (change, answer) {
    await this.helping.answered(change)
    for (const id of change.items) change.kind === 'lend' ? this.lent.add(id) : this.lent.delete(id)
    if (answer.body.request_id) {
      const { request_id, acknowledgement, link } = answer.body
      const { receipt_key } = change.body
      await this.db.put('requests', { request_id, acknowledgement, link, receipt_key, kind: change.kind, items: change.items })
    }
    this.tabs.postMessage('moved')
    this.makeList()
    if (change.kind !== 'lend') this.later()
  }

  async refused (change, error) {
    if (change.kind !== 'contribute' || error.status !== 412) this.notice = `${error.message} ${error.problem.next}`
    await Promise.all([this.readLoans(), this.helping.read()])
  }

  /** The account has ended: keep what leads to the receipt, and show it. */
  async leftWith (left, everything) {
    this.events?.close()
    await this.device.put('facts', left, 'left')
    if (everything) {
      for (const store of ['records', 'outbox', 'requests']) await this.db.clear(store)
    }
    this.left = left
    this.leaving = false
    this.become('left')
  }

  async signOut () {
    await this.settle()
    await signOut()
    this.leaving = false
    this.signedOut(true)
  }

  signedOut (wanted = false) {
    if (this.state !== 'in' || this.leaving) return
    this.events?.close()
    this.role = 'anonymous'
    this.state = 'out'
    this.notice = wanted ? '' : this.waiting.size ? 'Sign in again: some changes are not sent yet.' : 'Sign in again.'
    this.draw()
  }

  /** @param {{id: string, title: string, at: string}[]} records @returns {Promise<number>} how many are new */
  async add (records) {
    const added = new Date().toISOString()
    const count = await addRecords(this.db, records.map(one => ({ ...one, added })))
    await this.readRecords()
    this.tabs.postMessage('moved')
    await this.helping.follow()
    return count
  }

  /** Delete records that are not lent; if the sum counts one, take it back first. @param {string[]} ids */
  async remove (ids) {
    const gone = ids.filter(id => !this.lent.has(id) && !this.waiting.has(id))
    await this.takeBack(gone)
    await removeRecords(this.db, gone)
    await this.readRecords()
    this.tabs.postMessage('moved')
  }

  /** Let a record count for lists made here, or not. @param {string} id */
  async use (id, yes) {
    const record = this.records.find(one => one.id === id)
    if (record) await this.db.put('records', { ...record, unused: !yes })
    await this.readRecords()
    this.tabs.postMessage('moved')
  }
}
