/** Coming in: a passkey, or a recovery code. No e-mail, no password. */
import { Refused } from './api.js'
import { html, useState } from './html.js'
import { possible, recover, register, sign } from './passkey.js'
import { save } from './save.js'

/** @param {{model: any, done: () => void}} props */
export function Entry ({ model, done }) {
  const [busy, setBusy] = useState(false)
  const [says, setSays] = useState(model.notice)
  const [codes, setCodes] = useState(null)
  const [code, setCode] = useState('')
  const invitation = location.hash.match(/^#invite=([\w-]+)$/)?.[1]

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
    const made = await register(invitation)
    if (invitation) location.assign('/operator')
    else setCodes(made.recovery_codes)
  })
  const enter = attempt(async () => {
    const { role } = await sign()
    if (role !== 'person') location.assign('/operator')
    else done()
  })
  const help = attempt(async () => {
    const { codes_left: left } = await recover(code)
    await register()
    model.notice = `A new passkey is made. ${left ?? 'Some'} recovery codes are left.`
    done()
  })

  if (codes) return html`<${Codes} codes=${codes} done=${done} />`
  if (!possible()) {
    return html`<main class="entry"><h1>My records</h1>
      <p class="summary bad">This browser cannot make passkeys. Use a newer one.</p></main>`
  }
  return html`<main class="entry">
    <h1>${invitation ? 'You are invited to run this service' : 'Lend what you have seen. Take it back when you like.'}</h1>
    ${!invitation && html`<p class="lead">What you add here stays in this browser. You choose, one by one, what to lend. Recommendations
      are made on this device, and what you take back becomes unreadable here in a moment. It leaves what is served with the
      next release; then you get a receipt that you can check.</p>`}
    ${model.role !== 'anonymous' && html`<p class="note">You are signed in as ${model.role}: <a href="/operator">the operator's page</a>.</p>`}
    <p class="says" role="alert">${says}</p>
    <div class="row">
      <button class="main" disabled=${busy} onClick=${join}>${invitation ? 'Make a passkey' : 'Start with a new passkey'}</button>
      <button disabled=${busy} onClick=${enter}>I have a passkey</button>
    </div>
    <p class="note">A passkey is kept by your device and opened with a PIN, a finger or a face. We need no name, no e-mail and no password.</p>
    <details><summary>My passkey is lost</summary>
      <form onSubmit=${help}>
        <label for="code">Recovery code</label>
        <input id="code" autocomplete="one-time-code" spellcheck="false" value=${code} onInput=${event => setCode(event.target.value)} />
        <p class="note">It is used up by this. You then make a new passkey.</p>
        <button disabled=${busy || code.trim().length < 10}>Use the code</button>
      </form>
    </details>
  </main>`
}

function Codes ({ codes, done }) {
  const text = codes.join('\n') + '\n'
  return html`<main class="entry"><h1>Keep these codes</h1>
    <p class="lead">Each lets you in once if your passkey is lost. They are shown now and never again.</p>
    <pre class="codes" tabindex="0" aria-label="Recovery codes">${text}</pre>
    <div class="row">
      <button onClick=${() => save('recovery-codes.txt', text)}>Save them as a file</button>
      <button class="main" onClick=${done}>I have kept them</button>
    </div></main>`
}
