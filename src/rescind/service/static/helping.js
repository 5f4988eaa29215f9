/**
 * What this browser keeps, counted in the sum if the person says so. The ledger says whether it is:
 * one browser of a person helps at a time, and it is known by a random number.
 */
import { get, hex } from './api.js'
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
  }

  get offered () { return this.model.me.service.contribute }
  get on () { return this.by !== null && this.by === this.mark }
  get elsewhere () { return this.by !== null && this.by !== this.mark }

  async open () {
    const name = `helps-${this.model.me.name}`
    this.mark = await this.model.device.get('facts', name)
    if (!this.mark) {
      this.mark = hex(crypto.getRandomValues(new Uint8Array(16)))
      await this.model.device.put('facts', this.mark, name)
    }
  }

  /** Read what the ledger has. */
  async read () {
    const { items, device } = await get(PATH)
    this.sent = new Set(items)
    this.by = device
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
  async follow () { if (this.on && !(await this.model.outbox.waiting()).length) await this.turnOn() }

  answered (change) {
    if (change.kind === 'contribute') {
      this.sent = new Set(change.body.plus.items)
      this.by = this.mark
    } else {
      for (const id of change.items) this.sent.delete(id)
      if (!this.sent.size) this.by = null
    }
  }
}
