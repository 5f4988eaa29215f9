/** Recovery codes: shown once after coming in, and made anew by whoever has none left or lost them. */
import { call, newKey } from './api.js'
import { html, useEffect, useRef, useState } from './html.js'
import { sign } from './passkey.js'
import { save } from './save.js'

const USE = 'Each lets you in once if your passkey is lost. They are shown now and never again.'

/** The page after coming in. @param {{codes: string[], done: () => void}} props */
export function Codes ({ codes, done }) {
  return html`<main class="entry"><h1>Keep these codes</h1><${List} codes=${codes} done=${done} /></main>`
}

function List ({ codes, done }) {
  const text = codes.join('\n') + '\n'
  return html`<p class="lead">${USE}</p>
    <pre class="codes" tabindex="0" aria-label="Recovery codes">${text}</pre>
    <div class="row">
      <button onClick=${() => save('recovery-codes.txt', text)}>Save them as a file</button>
      <button class="main" onClick=${done}>I have kept them</button>
    </div>`
}

/** Ask first: the codes of before end. @param {{close: () => void}} props */
export function NewCodes ({ close }) {
  const box = useRef(null)
  const [busy, setBusy] = useState(false)
  const [says, setSays] = useState('')
  const [codes, setCodes] = useState(null)
  useEffect(() => { box.current.showModal() }, [])
  const make = async () => {
    if (busy) return
    setBusy(true)
    setSays('')
    try {
      await sign('confirm')
      setCodes((await call('POST', '/v1/me/recovery-codes', { key: newKey() })).body.recovery_codes)
    } catch (error) {
      setSays(error.message)
    }
    setBusy(false)
  }
  return html`<dialog ref=${box} aria-labelledby="codes" onClose=${close}>
    <h2 id="codes">${codes ? 'Keep these codes' : 'Make new recovery codes?'}</h2>
    ${codes
      ? html`<${List} codes=${codes} done=${() => box.current.close()} />`
      : html`<p>You get ten. Codes that you had before stop working.</p>
    <p class="says" role="alert">${says}</p>
    <div class="row">
      <button class="main" aria-disabled=${busy} onClick=${make}>Make them, and confirm with my passkey</button>
      <button onClick=${() => box.current.close()}>Not now</button>
    </div>`}</dialog>`
}
