/** The items that people may have and lend: ids and titles, kept by this browser. */
import { call } from './api.js'

const FACT = 'catalogue'

export class Catalogue {
  /** @param {{id: string, title: string}[]} items in the service's order */
  constructor (items) {
    this.items = items
    this.place = new Map(items.map((item, n) => [item.id, n]))
  }

  /** Titles as they are compared, made when somebody first looks for one: no list waits for them. */
  get searched () { return (this.plain ??= this.items.map(item => plain(item.title))) }

  get byTitle () { return (this.found ??= new Map(this.items.map((item, n) => [this.searched[n], item.id]))) }

  /** @param {string} id */
  title (id) { return this.items[this.place.get(id)]?.title ?? id }

  /** Return the id of a row of a file; undefined if the catalogue has no such item. */
  find (id, title) {
    if (id && this.place.has(id)) return id
    return this.byTitle.get(plain(title))
  }

  /** Return places of ids, sorted; what is not in the catalogue any more is left out. */
  places (ids) {
    return ids.map(id => this.place.get(id)).filter(n => n !== undefined).sort((a, b) => a - b)
  }

  /** Return some items whose titles hold these words. */
  search (words, most, without) {
    const wanted = plain(words)
    const found = []
    for (let n = 0; n < this.items.length && found.length < most; n++) {
      if (this.searched[n].includes(wanted) && !without.has(this.items[n].id)) found.push(this.items[n])
    }
    return found
  }
}

/** Titles are compared without accents, capitals, punctuation and “, The”. */
export function plain (text) {
  const bare = text.normalize('NFKD').replace(/\p{M}/gu, '').toLowerCase()
  return bare.replace(/^(.*), (the|a|an|le|la|les|il|das|der|die)\b(.*)$/, '$2 $1$3')
    .replace(/[^\p{L}\p{N}]+/gu, ' ').trim()
}

/** Read the catalogue; from this browser if it has not changed. */
export async function loadCatalogue (device) {
  const kept = await device.get('facts', FACT)
  const headers = kept ? { 'If-None-Match': kept.etag } : {}
  const first = await call('GET', '/v1/catalogue', { headers })
  if (first.status === 304) return new Catalogue(kept.items)
  const items = first.body.items
  for (let next = first.body.next; next;) {
    const more = (await call('GET', `/v1/catalogue?cursor=${next}`)).body
    items.push(...more.items)
    next = more.next
  }
  await device.put('facts', { etag: first.etag, items }, FACT)
  return new Catalogue(items)
}
