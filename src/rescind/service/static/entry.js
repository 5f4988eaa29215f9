/** Coming in: a passkey, or a recovery code. No e-mail, no password. */
import { Refused } from './api.js'
import { Codes } from './codes.js'
import { html, useEffect, useRef, useState } from './html.js'
import { possible, register, sign } from './passkey.js'
import { counted } from './words.js'

/** @param {{model: any, done: () => void}} props */
export function Entry ({ model, done }) {
  const [busy, setBusy] = useState(false)
  const [says, setSays] = useState(model.notice)
  const [codes, setCodes] = useState(null)
  const [typing, setTyping] = useState(false)
  const [code, setCode] = useState('')
  const box = useRef(null)
  useEffect(() => { if (typing) box.current.focus() }, [typing])
  const invitation = location.hash.match(/^#invite=([\w-]+)$/)?.[1]

  const finish = says => { model.notice = says; done() }
  const attempt = task => async event => {
    event.preventDefault()
    if (busy) return
    setBusy(true)
    setSays('')
    try {
      await task()
    } catch (error) {
      setSays(error instanceof Refused ? `${error.message} ${error.problem.next}` : error.message)
    }
    setBusy(false)
  }
  const join = attempt(async () => {
    const { role, recovery_codes: made } = await register(invitation ? { invitation } : {})
    if (role !== 'person') location.assign('/operator')
    else if (made.length) setCodes(made)
    else finish('You were signed in here already: the new passkey is for the same account.') // in another tab
  })
  const enter = attempt(async () => {
    const { role } = await sign()
    if (role !== 'person') location.assign('/operator')
    else done()
  })
  const help = attempt(async () => {
    const { recovery_codes: made, codes_left: left } = await register({ code: code.trim() })
    if (made.length) setCodes(made) // it was the last one
    else finish(`A new passkey is made. ${counted(left, 'recovery code is', 'recovery codes are')} left.`)
  })

  if (codes) return html`<${Codes} codes=${codes} done=${done} />`
  if (!possible()) {
    return html`<main class="entry"><h1>My records</h1>
      <p class="summary bad">This browser cannot make passkeys. Use a newer one.</p></main>`
  }
  return html`<main class="entry">
    <h1>${invitation ? 'You are invited to this service' : 'Lend what you have seen. Take it back when you like.'}</h1>
    ${!invitation && html`<p class="lead">What you add here stays in this browser. You choose, one by one, what to lend. Recommendations
      are made on this device, and what you take back becomes unreadable here in a moment. It leaves what is served with the
      next release; then you get a receipt that you can check.</p>`}
    ${model.role !== 'anonymous' && html`<p class="note">You are signed in as ${model.role}: <a href="/operator">the operator's page</a>.</p>`}
    <p class="says" role="alert">${says}</p>
    <div class="row">
      <button class="main" disabled=${busy} onClick=${join}>${invitation ? 'Make a passkey' : 'Start with a new passkey'}</button>
      <button disabled=${busy} onClick=${enter}>I have a passkey</button>
      ${!invitation && html`<button aria-expanded=${typing} onClick=${() => setTyping(!typing)}>I have a code, or lost my passkey</button>`}
    </div>
    ${typing && html`<form class="summary open" onSubmit=${help}>
      <label for="code">Your code</label>
      <input id="code" ref=${box} autocomplete="one-time-code" spellcheck="false" value=${code} onInput=${event => setCode(event.target.value)} />
      <p class="note">The code that you were sent, or one of the recovery codes that you kept. It opens the account that it belongs to, with
        its records. You make a new passkey for it, and then the code is used up.</p>
      <button disabled=${busy || code.trim().length < 10}>Use the code and make a passkey</button>
    </form>`}
    <p class="note">A passkey is kept by your device and opened with a PIN, a finger or a face. We need no name, no e-mail and no password.</p>
  </main>`
}
