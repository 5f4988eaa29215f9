/** Numbers and times in words. */
const TIME = { day: 'numeric', month: 'short', hour: '2-digit', minute: '2-digit' }

/** @param {number} n */
export function ordinal (n) {
  const last = n % 100 > 10 && n % 100 < 14 ? 0 : n % 10
  return `${n}${['th', 'st', 'nd', 'rd'][last] ?? 'th'}`
}

/** @param {number} n @param {string} one @param {string} [many] */
export const counted = (n, one, many = `${one}s`) => `${n.toLocaleString('en')} ${n === 1 ? one : many}`

/** @param {string | Date} at */
export function when (at) {
  const then = new Date(at)
  const clock = then.toLocaleTimeString('en-GB', { hour: '2-digit', minute: '2-digit' })
  const days = Math.round((midnight(then) - midnight(new Date())) / 864e5)
  const name = { '-1': 'yesterday', 0: 'today', 1: 'tomorrow' }[days]
  return name ? `${name} ${clock}` : then.toLocaleString('en-GB', TIME)
}

/** How long ago, roughly. @param {string} at */
export function age (at) {
  const minutes = Math.max(0, (Date.now() - Date.parse(at)) / 6e4)
  if (minutes < 2) return 'new'
  if (minutes < 120) return `${Math.round(minutes)} minutes old`
  if (minutes < 2880) return `${Math.round(minutes / 60)} hours old`
  return `${Math.round(minutes / 1440)} days old`
}

/** @param {string} from @param {string} to */
export const seconds = (from, to) => `${Math.max(0, (Date.parse(to) - Date.parse(from)) / 1000).toFixed(2)} s`

function midnight (date) { return new Date(date.getFullYear(), date.getMonth(), date.getDate()).getTime() }
