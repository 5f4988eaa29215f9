/** Passkeys: the browser's own methods, nothing else. */
import { call } from './api.js'

/**
 * Make a passkey: a new account, one more for the account that is signed in, as invited, or for the
 * account that a recovery code opens. Invitation and code are spent when the passkey is there.
 * @param {{invitation?: string, code?: string}} [begin]
 */
export async function register (begin = {}) {
  const begun = (await call('POST', '/v1/account/begin', { body: begin })).body
  const publicKey = PublicKeyCredential.parseCreationOptionsFromJSON(begun.options)
  const made = await asked(() => navigator.credentials.create({ publicKey }))
  const body = { ceremony: begun.ceremony, credential: made.toJSON() }
  return (await call('POST', '/v1/account/finish', { body })).body
}

/** Sign in; or, with `confirm`, show once more that it is you. */
export async function sign (way = 'finish') {
  const begun = (await call('POST', '/v1/session/begin')).body
  const publicKey = PublicKeyCredential.parseRequestOptionsFromJSON(begun.options)
  const used = await asked(() => navigator.credentials.get({ publicKey }))
  const body = { ceremony: begun.ceremony, credential: used.toJSON() }
  return (await call('POST', `/v1/session/${way}`, { body })).body
}

export const signOut = () => call('DELETE', '/v1/session')

/** Whether this browser can make passkeys. */
export const possible = () => Boolean(window.PublicKeyCredential?.parseCreationOptionsFromJSON)

/** Nothing was done because the person, or the device, said no. */
export class Declined extends Error {}

async function asked (ask) {
  try {
    return await ask()
  } catch (error) {
    throw new Declined(error.name === 'NotAllowedError'
      ? 'No passkey was used. Nothing has changed.'
      : `The passkey could not be used: ${error.message}`)
  }
}
