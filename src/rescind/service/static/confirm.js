/** What an agent asked for in the person's name waits here for their word (#confirm=ID). */
import { get, once } from './api.js'
import { html, useEffect, useState } from './html.js'
import { sign } from './passkey.js'

const WISHES = {
  leave: ['An agent asks us to delete everything about you', 'It says that you want to leave.', 'Yes, delete and leave'],
  access: ['An agent asks us for everything about you', 'It says that you want a copy. It gets a link that works for 60 days.', 'Yes, give it a copy']
}

/** @param {{model: any}} props */
export function Confirm ({ model }) {
  const [id, setId] = useState(location.hash.match(/^#confirm=([0-9a-f]{32})$/)?.[1])
  const [kind, setKind] = useState('') // the service says what is asked: a link could lie
  const [says, setSays] = useState('')
  const path = `/v1/me/requests/${id}`
  const away = () => { history.replaceState(null, '', '/'); setId('') }
  useEffect(() => {
    const gone = () => { away(); model.say('The request of an agent that you followed a link to does not wait for you.') }
    if (id) get(path).then(found => found.reason && WISHES[found.kind] ? setKind(found.kind) : gone(), gone)
  }, [id])
  if (!id || !kind) return null
  const [title, about, yes] = WISHES[kind]
  const give = async () => {
    try {
      await sign('confirm')
      if (kind === 'leave') await model.settle()
      const { body } = await once('POST', `${path}/confirm`, {})
      away()
      if (kind === 'leave') await model.leftWith({ ...body, items: model.helping.everything }, false)
      else model.say('The agent gets a copy of everything about you.')
    } catch (error) {
      model.leaving = false
      setSays(error.message)
    }
  }
  return html`<section class="summary open" aria-labelledby="asked"><h2 id="asked">${title}</h2>
    <p>${about} Nothing happens unless you confirm it with your passkey.</p>
    <p class="says" role="alert">${says}</p>
    <div class="row"><button class=${kind === 'leave' ? 'bad' : 'main'} onClick=${give}>${yes}</button><button onClick=${away}>No</button></div></section>`
}
