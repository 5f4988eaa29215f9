/**
 * Files of what somebody has seen, read here and sent nowhere: CSV with a header, `.inter` files,
 * `u.data` and `ratings.dat` without one, and the JSON that this service exports.
 *
 * @typedef {{user: string, id: string, title: string, at: string}} Row
 */
import { counted } from './words.js'

const IDS = ['id', 'item', 'item_id', 'itemid', 'movie_id', 'movieid', 'film', 'isbn']
const TITLES = ['title', 'name', 'movie', 'movie_title', 'item_title']
const TIMES = ['at', 'date', 'time', 'timestamp', 'watched', 'watched_date', 'added']
const USERS = ['user', 'user_id', 'userid', 'person']
export const LARGEST = 64 << 20
const NAMED = 3 // lines that nobody knows, named in a sentence

/** @param {string} text @param {string} name of the file @returns {Row[]} */
export function rowsOf (text, name = '') {
  const clean = text.replace(/^\uFEFF/, '')
  if (/^\s*[[{]/.test(clean)) return fromJson(clean)
  const lines = clean.split(/\r?\n/).filter(line => line.trim())
  if (!lines.length) throw new Error(`${name || 'The file'} is empty.`)
  const mark = ['::', '\t', ';', ','].find(one => lines[0].includes(one)) ?? ','
  const table = mark === ',' || mark === ';' ? quoted(clean, mark) : lines.map(line => line.split(mark))
  const head = table[0].map(cell => cell.trim().toLowerCase().replace(/:.*$/, '').replaceAll(' ', '_'))
  const find = names => head.findIndex(cell => names.includes(cell))
  let [user, id, title, at] = [USERS, IDS, TITLES, TIMES].map(find)
  const named = id >= 0 || title >= 0
  if (!named) {
    if (table[0].length < 3 || !table[0].slice(0, 2).every(cell => /^\d+$/.test(cell.trim()))) {
      throw new Error(`${name || 'The file'} has no column called id or title. Its first line is “${lines[0].slice(0, 60)}”. Name the columns in the first line, such as: title,date`)
    }
    ;[user, id, title, at] = [0, 1, -1, 3]
  }
  const cell = (row, n) => n < 0 ? '' : (row[n] ?? '').trim()
  return table.slice(named ? 1 : 0).map(row => ({
    user: cell(row, user), id: cell(row, id), title: cell(row, title), at: day(cell(row, at))
  })).filter(row => row.id || row.title)
}

/** @returns {Row[]} */
function fromJson (text) {
  const found = JSON.parse(text)
  const list = Array.isArray(found) ? found : found.records ?? found.loans ?? found.items
  if (!Array.isArray(list)) throw new Error('This JSON file holds no list of records.')
  const pick = (one, names) => String(names.map(name => one[name]).find(value => value != null) ?? '')
  return list.map(one => typeof one === 'string'
    ? { user: '', id: one, title: one, at: '' }
    : { user: pick(one, USERS), id: pick(one, IDS), title: pick(one, TITLES), at: day(pick(one, TIMES)) })
}

/** Split lines whose cells may be in quotes. */
function quoted (text, mark) {
  const rows = []
  let row = []
  let cell = ''
  let inside = false
  for (let n = 0; n <= text.length; n++) {
    const c = text[n]
    if (inside) {
      if (c === '"' && text[n + 1] === '"') cell += text[++n]
      else if (c === '"' || c === undefined) inside = false
      else cell += c
    } else if (c === '"' && cell === '') inside = true
    else if (c === mark || c === '\n' || c === undefined) {
      row.push(cell)
      cell = ''
      if (c !== mark) {
        if (row.some(one => one.trim())) rows.push(row)
        row = []
      }
    } else if (c !== '\r') cell += c
  }
  return rows
}

/** Return a time of any usual form as 2001-01-04; '' if it is none. @param {string} text */
export function day (text) {
  if (/^\d{9,13}(\.\d+)?$/.test(text)) {
    const number = Number(text)
    return new Date(number > 1e11 ? number : 1000 * number).toISOString().slice(0, 10)
  }
  const found = text.match(/^\d{4}-\d{2}-\d{2}/)
  if (found) return found[0]
  const parsed = text ? Date.parse(text) : NaN
  return Number.isNaN(parsed) ? '' : new Date(parsed).toISOString().slice(0, 10)
}

/** Return how many lines each user of a file has, the most first. @param {Row[]} rows */
export function usersOf (rows) {
  const count = new Map()
  for (const { user } of rows) count.set(user, (count.get(user) ?? 0) + 1)
  return [...count].sort((a, b) => b[1] - a[1])
}

/**
 * Find rows in the catalogue, by id or by title. A record counts once, with its newest time.
 * @param {Row[]} rows @param {import('./catalogue.js').Catalogue} catalogue
 */
export function matched (rows, catalogue) {
  const found = new Map()
  const unknown = []
  for (const row of rows) {
    const id = catalogue.find(row.id, row.title)
    if (id === undefined) { unknown.push(row.title || row.id); continue }
    const before = found.get(id)
    if (!before || before.at < row.at) found.set(id, { id, title: catalogue.title(id), at: row.at })
  }
  return { found: [...found.values()], unknown }
}

/**
 * Say what became of a file. It stays on the page while its records are lent and taken back, so all
 * of it is past: true of the file, whatever happens next.
 * @param {number} fresh @param {number} had @param {string[]} unknown @param {boolean} helping
 */
export function added (fresh, had, unknown, helping) {
  const names = [...new Set(unknown)]
  const shown = names.slice(0, NAMED).map(name => `“${name.slice(0, 60)}”`).join(', ') + (names.length > NAMED ? ' and others' : '')
  return `${counted(fresh, 'record was', 'records were')} new here.` +
    (had ? ` ${counted(had, 'was', 'were')} here already.` : '') +
    (unknown.length ? ` ${counted(unknown.length, 'line names', 'lines name')} nothing that this service knows: ${shown}.` : '') +
    (helping ? ' What stays here helps the model for as long as you let it.' : ' The file itself was sent nowhere.')
}
