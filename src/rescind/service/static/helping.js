/**
 * What this browser keeps, counted in the sum if the person says so. The ledger says whether it is:
 * one browser of a person helps at a time, and it is known by a random number.
 */
import { get, hex } from './api.js'
import { markAway } from './keep.js'
import { differenceOf } from './kept.js'

const PATH = '/v1/me/contribution'
const MOST = 5000

export class Helping {
  constructor (model) {
    this.model = model
    /** @type {Set<string>} what the sum has of a browser of this person */
    this.sent = new Set()
    this.by = null
    this.waiting = false
    this.changes = 0
  }

  get offered () { return this.model.me.service.contribute }
  get on () { return this.by !== null && this.by === this.mark }
  get elsewhere () { return this.by !== null && this.by !== this.mark }

  /** Everything of this person that the sum has. */
  get everything () { return [...this.model.lent, ...this.sent] }

  async open () {
    const kept = await this.model.device.get('facts', this.fact)
    this.mark = kept?.mark ?? hex(crypto.getRandomValues(new Uint8Array(16)))
    this.noted = kept?.noted ?? []
    if (!kept) await this.note([])
  }

  get fact () { return `helps-${this.model.me.name}` }

  /** Remember what this browser has sent. @param {string[]} ids */
  note (ids) {
    this.noted = ids
    return this.model.device.put('facts', { mark: this.mark, noted: ids }, this.fact)
  }

  /** Note that records were lent or taken back once: they never help by themselves again. */
  async away (ids) {
    const those = new Set(ids)
    for (const one of this.model.records) one.away ||= those.has(one.id)
    if (those.size) await markAway(this.model.db, those)
  }

  /** Read what the ledger has. What it lost without this browser was lent or taken back elsewhere. */
  async read () {
    const before = this.changes
    const { items, device } = await get(PATH)
    if (before !== this.changes) return // older than what was answered meanwhile; it is read again
    this.sent = new Set(items)
    this.by = device
    if (!this.on) return
    const lost = this.noted.filter(id => !this.sent.has(id))
    if (lost.length) await this.away(lost)
    if (lost.length || this.noted.length !== items.length) await this.note(items)
  }

  /** Records that stay here and may be counted. What was lent or taken back once never goes by itself. */
  get stays () {
    const { records, lent, waiting } = this.model
    return records.filter(one => !one.away && !one.unused && !lent.has(one.id) && !waiting.has(one.id)).map(one => one.id)
  }

  /** Send what stays here, with what was sent before. */
  async turnOn () {
    if (this.waiting || this.elsewhere) return
    const kept = [...new Set([...this.sent, ...this.stays])].slice(0, MOST)
    if (kept.length === this.sent.size) return
    this.waiting = true
    const { catalogue } = this.model
    const named = ({ items, weight }) => ({ items: items.map(n => catalogue.items[n].id), weight })
    const { minus, plus } = differenceOf(catalogue.places([...this.sent]), catalogue.places(kept))
    const body = { device: this.mark, minus: named(minus), plus: named(plus) }
    await this.model.change({ kind: 'contribute', items: [], path: PATH, body })
  }

  /** Take everything back that a browser sent; records stay here, and may be sent again. */
  turnOff () { return this.model.takeBack([...this.sent], 'unshare', true) }

  /** While it is on, what is added here is counted, too. */
  async follow () {
    const more = () => this.on && this.stays.some(id => !this.sent.has(id))
    if (!more() || (await this.model.outbox.waiting()).length) return
    // In this order: a record is marked as taken back before the ledger hears of it.
    await this.read()
    await this.model.readRecords()
    if (more()) await this.turnOn()
  }

  async answered (change) {
    this.changes++
    if (change.kind === 'contribute') {
      this.sent = new Set(change.body.plus.items)
      this.by = this.mark
    } else {
      for (const id of change.items) this.sent.delete(id)
      if (!this.sent.size) this.by = null
    }
    if (this.by === null || this.on) await this.note([...this.sent])
  }
}
