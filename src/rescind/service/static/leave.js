/** Leaving: one button, one confirmation with the passkey, one link that stays. */
import { newSecret, once } from './api.js'
import { html, useEffect, useRef, useState } from './html.js'
import { sign } from './passkey.js'
import { save } from './save.js'
import { counted } from './words.js'

/** @param {{model: any, close: () => void}} props */
export function Leave ({ model, close }) {
  const box = useRef(null)
  const [busy, setBusy] = useState(false)
  const [says, setSays] = useState('')
  const [here, setHere] = useState(false)
  useEffect(() => { box.current.showModal() }, [])
  const leave = async () => {
    if (busy) return
    setBusy(true)
    setSays('')
    try {
      await sign('confirm')
      await model.settle()
      const key = newSecret()
      const { body } = await once('POST', '/v1/me/requests', { kind: 'leave', items: 'everything', receipt_key: key })
      await model.leftWith({ ...body, receipt_key: key, items: model.helping.everything }, here)
    } catch (error) {
      model.leaving = false
      setSays(error.message)
      setBusy(false)
    }
  }
  return html`<dialog ref=${box} aria-labelledby="leave" onClose=${close} onCancel=${close}>
    <h2 id="leave">Leave this service?</h2>
    <p>Everything that we have of you (${counted(model.helping.everything.length, 'record')}) becomes unreadable at once, and your account ends. What is
      served now still comes from it, until the next release. You get a link to your receipt. It works for 60 days, without an account.</p>
    <label class="check"><input type="checkbox" checked=${here} onChange=${event => setHere(event.target.checked)} />
      Also delete the ${counted(model.records.length, 'record')} kept in this browser</label>
    <p class="says" role="alert">${says}</p>
    <div class="row">
      <button class="bad" aria-disabled=${busy} onClick=${leave}>Leave, and confirm with my passkey</button>
      <button onClick=${() => box.current.close()}>Stay</button>
    </div></dialog>`
}

/** After leaving. @param {{left: any}} props */
export function Left ({ left }) {
  const link = new URL(left.link, location.href).href
  return html`<main class="entry"><h1>You have left</h1>
    <p class="lead">Everything you lent is unreadable in our store and out of the sum. It leaves what is served with the next release.</p>
    <div class="summary good"><p>This link leads to your receipt for 60 days. It needs no account. Keep it.</p>
      <p><a class="digest" href=${link}>${link}</a></p>
      <div class="row"><button onClick=${() => navigator.clipboard.writeText(link)}>copy the link</button>
      <button onClick=${() => save('left.json', JSON.stringify({ ...left, link }, null, 1), 'application/json')}>save link, key and acknowledgement ↓</button></div></div>
    <p><a href="/">Back to the start</a></p></main>`
}
