/** Times and counts in words. Times come as UTC; people read spans and their own clock. */

const MOMENT = { day: 'numeric', month: 'short', hour: '2-digit', minute: '2-digit' }
const STEPS = [[86400, 'd'], [3600, 'h'], [60, 'min'], [1, 's']]

/** Return a span in its largest unit, as "4 h". @param {number} seconds */
export function span (seconds) {
  const size = Math.abs(seconds)
  const [unit, name] = STEPS.find(([unit]) => size >= unit) ?? STEPS.at(-1)
  return `${Math.floor(size / unit)} ${name}`
}

/** @param {string | null} at @param {number} [now] seconds from now: negative in the past */
export function until (at, now = Date.now()) {
  return at ? (Date.parse(at) - now) / 1000 : NaN
}

/** Return how long ago, as "4 h ago". @param {string | null} at */
export function ago (at) {
  return at ? `${span(until(at))} ago` : 'never'
}

/** Return a moment by the reader's own clock. @param {string | null} at */
export function moment (at) {
  return at ? new Date(at).toLocaleString('en-GB', MOMENT) : '–'
}

/** Return when three months are over, by the calendar in UTC: no answer may come later. @param {string} received */
export function lawful (received) {
  const from = new Date(received)
  const [year, month] = [from.getUTCFullYear(), from.getUTCMonth() + 3]
  const last = new Date(Date.UTC(year, month + 1, 0)).getUTCDate()
  return Date.UTC(year, month, Math.min(from.getUTCDate(), last) + 1)
}

/** @param {number | null | undefined} number */
export function count (number) {
  return number == null ? '–' : number.toLocaleString('en')
}

/** Return bytes as "61 MB". @param {number} bytes */
export function size (bytes) {
  const units = ['B', 'kB', 'MB', 'GB', 'TB']
  const step = Math.min(units.length - 1, Math.max(0, Math.floor(Math.log10(Math.max(bytes, 1)) / 3)))
  const value = bytes / 1000 ** step
  return `${value < 10 && step ? value.toFixed(1) : Math.round(value)} ${units[step]}`
}
