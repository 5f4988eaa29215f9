/**
 * What this browser keeps (IndexedDB). Two databases: one of the person, one of the device.
 *
 * person   records    {id, title, at, added}: what they have, whether it is lent or not; `away`: it was
 *                     lent or taken back once, `unused`: it is left out of lists
 *          outbox     changes that the service has not acknowledged yet
 *          requests   acknowledgements, links and keys of receipts, by request
 * device   facts      catalogue, release, pinned keys, the last checkpoint of the log
 */
import { openDB } from './vendor/idb.mjs'

/** @typedef {{id: string, title: string, at: string, added: string}} Kept */

/** @param {string} who what the service calls the account, so that two people do not share */
export function openPerson (who) {
  return openDB(`rescind-person-${who}`, 1, {
    upgrade (db) {
      db.createObjectStore('records', { keyPath: 'id' })
      db.createObjectStore('outbox', { keyPath: 'n', autoIncrement: true })
      db.createObjectStore('requests', { keyPath: 'request_id' })
    }
  })
}

export function openDevice () {
  return openDB('rescind-device', 1, {
    upgrade (db) { db.createObjectStore('facts') }
  })
}

/** Add records that are not there yet; return how many. @param {Kept[]} records */
export async function addRecords (db, records) {
  const tx = db.transaction('records', 'readwrite')
  const known = new Set(await tx.store.getAllKeys())
  const fresh = records.filter(one => !known.has(one.id))
  for (const one of fresh) tx.store.put(one)
  await tx.done
  return fresh.length
}

/** Note that records were lent or taken back once: they do not leave again by themselves. @param {Set<string>} ids */
export async function markAway (db, ids) {
  const tx = db.transaction('records', 'readwrite')
  for (const one of await tx.store.getAll()) if (ids.has(one.id) && !one.away) tx.store.put({ ...one, away: true })
  await tx.done
}

/** @param {string[]} ids */
export async function removeRecords (db, ids) {
  const tx = db.transaction('records', 'readwrite')
  for (const id of ids) tx.store.delete(id)
  await tx.done
}
