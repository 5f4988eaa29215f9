/** How an operator comes in: with a passkey, the first time by an invitation. */
import { call } from './api.js'

/** @returns {string} the invitation in the address, '' if there is none */
export function invitation () {
  return new URLSearchParams(location.hash.slice(1)).get('invite') ?? ''
}

/** Make a passkey for an invitation; the answer names the role. @param {string} text */
export async function accept (text) {
  const begun = (await call('POST', '/v1/account/begin', { body: { invitation: text } })).body
  const publicKey = PublicKeyCredential.parseCreationOptionsFromJSON(begun.options)
  const made = await navigator.credentials.create({ publicKey })
  history.replaceState(null, '', location.pathname) // it works once: no need to keep it in sight
  return finish('/v1/account/finish', begun.ceremony, made)
}

/** Sign in with a passkey. */
export async function signIn () {
  const begun = (await call('POST', '/v1/session/begin')).body
  const publicKey = PublicKeyCredential.parseRequestOptionsFromJSON(begun.options)
  return finish('/v1/session/finish', begun.ceremony, await navigator.credentials.get({ publicKey }))
}

export const signOut = () => call('DELETE', '/v1/session')

async function finish (path, ceremony, credential) {
  return (await call('POST', path, { body: { ceremony, credential: credential.toJSON() } })).body
}
