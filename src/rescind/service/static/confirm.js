/** What an agent asked for in the person's name waits here for their word (#confirm=ID). */
import { once } from './api.js'
import { html, useState } from './html.js'
import { sign } from './passkey.js'

/** @param {{model: any}} props */
export function Confirm ({ model }) {
  const [id, setId] = useState(location.hash.match(/^#confirm=([0-9a-f]{32})$/)?.[1])
  const [says, setSays] = useState('')
  if (!id) return null
  const away = () => { history.replaceState(null, '', '/'); setId('') }
  const give = async () => {
    try {
      await sign('confirm')
      await model.settle()
      const { body } = await once('POST', `/v1/me/requests/${id}/confirm`, {})
      away()
      await model.leftWith({ ...body, items: [...model.lent] }, false)
    } catch (error) {
      model.leaving = false
      setSays(error.message)
    }
  }
  return html`<section class="summary open" aria-labelledby="asked"><h2 id="asked">An agent asks us to delete everything about you</h2>
    <p>It says that you want to leave. Nothing happens unless you confirm it with your passkey.</p>
    <p class="says" role="alert">${says}</p>
    <div class="row"><button class="bad" onClick=${give}>Yes, delete and leave</button><button onClick=${away}>No</button></div></section>`
}
