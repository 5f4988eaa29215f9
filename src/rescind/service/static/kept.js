/**
 * What stays here, as a sum counts it: the difference that `Gram` in Python defines for a device
 * (`_exchange.client_items`), number for number. One file of vectors is checked on both sides.
 *
 * @typedef {{items: number[], weight: number}} Part places in the catalogue, and the weight of each pair
 */
const UNIT = 4096

/** The weight of each pair of somebody who has n items. Halves, which Python rounds to even, do not come up below 2^26. */
export const weightOf = n => n ? Math.round(UNIT / Math.sqrt(n)) : 0

/** @param {Iterable<number>} places @returns {Part} */
function part (places) {
  const items = [...new Set(places)].sort((a, b) => a - b)
  return { items, weight: weightOf(items.length) }
}

/** What the sum must lose and gain. @param {Iterable<number>} sent counted before @param {Iterable<number>} kept here now */
export const differenceOf = (sent, kept) => ({ minus: part(sent), plus: part(kept) })
