/** The person's page. */
import { NewCodes } from './codes.js'
import { Confirm } from './confirm.js'
import { Entry } from './entry.js'
import { ForYou } from './foryou.js'
import { Help } from './help.js'
import { html, render, useEffect, useReducer, useState } from './html.js'
import { Leave, Left } from './leave.js'
import { LogState } from './logstate.js'
import { Model } from './model.js'
import { Records } from './records.js'
import { Roster } from './roster.js'
import { Taken } from './taken.js'

const page = document.getElementById('page')
let draw = () => {}
const model = new Model(() => draw())

function Page () {
  const [, again] = useReducer(n => n + 1, 0)
  const [leaving, setLeaving] = useState(false)
  const [coding, setCoding] = useState(false)
  useEffect(() => { draw = again }, [])
  if (model.state === 'starting') return html`<main class="entry"><p class="quiet" role="status">Opening…</p></main>`
  if (model.state === 'left') return html`<${Left} left=${model.left} />`
  if (model.state === 'out') return html`<${Entry} model=${model} done=${() => model.start()} />`
  if (model.state === 'broken') {
    return html`<main class="entry"><h1>My records</h1><p class="summary bad" role="alert">${model.notice}</p>
      <button onClick=${() => model.start()}>Try again</button></main>`
  }
  return html`
    <header class="top"><h1>My records</h1>
      <nav aria-label="Account"><span class="quiet">this browser</span>
        <button class="plain" onClick=${() => setCoding(true)}>new recovery codes</button>
        <button class="plain" onClick=${() => model.signOut()}>sign out</button>
        <button class="plain" onClick=${() => setLeaving(true)}>leave</button></nav></header>
    <main>
      ${!model.online && html`<p class="summary open" role="status">You are offline. What you change is kept here and sent when you are back.</p>`}
      <p class="says" role="alert">${model.notice}</p>
      <${Confirm} model=${model} />
      <${Records} model=${model} />
      <${ForYou} model=${model} />
      <${Help} model=${model} />
      <${Taken} model=${model} />
      <${Roster} model=${model} />
      <${LogState} log=${model.log} />
    </main>
    ${coding && html`<${NewCodes} close=${() => setCoding(false)} />`}
    ${leaving && html`<${Leave} model=${model} close=${() => setLeaving(false)} />`}`
}

page.replaceChildren()
render(html`<${Page} />`, page)
await model.start()
