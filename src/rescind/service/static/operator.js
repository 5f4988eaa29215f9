/** The operator's page: is it healthy, what is due, what is learning, what did the last audit say. */
import { Refused, get, once } from './api.js'
import { html, render, useCallback, useEffect, useState } from './html.js'
import { Extend, Quarantine, ReleaseNow, Serve, StartGeneration, said } from './operator_actions.js'
import { Audits, Badge, Health, Learning, Release, Requests, Store, Witnesses, health } from './operator_parts.js'
import { follow, read, withRound } from './operator_state.js'
import { register, sign, signOut } from './passkey.js'

const ABOUT = 'Counts and times of this service, for those who run it.'
const RUNS = ['operator', 'officer']

/** @returns {string} the invitation in the address, '' if there is none */
const invitation = () => new URLSearchParams(location.hash.slice(1)).get('invite') ?? ''

/** @param {{enter: () => void, why: string}} props */
function Enter ({ enter, why }) {
  const invited = invitation()
  const [error, setError] = useState('')
  const go = async () => {
    setError('')
    try {
      await (invited ? register({ invitation: invited }) : sign())
      if (invited) history.replaceState(null, '', location.pathname) // it works once: do not keep it
      await enter()
    } catch (failure) {
      setError(said(failure))
    }
  }
  return html`<main class="enter card">
    <h1>Operator</h1>
    <p>${invited ? "You are invited to the operator's page of this service. Make a passkey on this device: it is how you come in from now on." : why}</p>
    <button type="button" class="main" onClick=${go}>${invited ? 'Make a passkey' : 'Sign in with a passkey'}</button>
    ${error && html`<p class="summary bad" role="alert">${error}</p>`}
    <p class="note">Operators are invited with <code>rescind serve --invite-operator</code>, officers
    with <code>--invite-officer</code>. Your own records are on <a href="/">the other page</a>.</p>
  </main>`
}

function Overview ({ first, leave }) {
  const [known, setKnown] = useState(first)
  const [live, setLive] = useState(false)
  const [asked, setAsked] = useState(null)
  const [message, setMessage] = useState({ text: '', tone: 'good' })
  const [scanning, setScanning] = useState(false)
  const failed = useCallback(error => {
    if (error instanceof Refused && error.status === 401) leave('Your session has ended.')
    else setMessage({ text: said(error), tone: 'bad' })
  }, [])
  const again = useCallback(async () => {
    try {
      setKnown(await read())
    } catch (error) {
      failed(error)
    }
  }, [])
  useEffect(() => follow({
    parts: parts => setKnown(before => ({ ...before, ...parts })),
    round: told => setKnown(before => withRound(before, told)),
    failed,
    live: setLive
  }), [])
  const close = done => {
    setAsked(null)
    if (done) {
      setMessage({ text: done, tone: 'good' })
      again()
    }
  }
  const scan = async () => {
    setScanning(true)
    try {
      const { body } = await once('POST', '/v1/operator/scan', {})
      const bad = body.found > 0
      setMessage({ text: `The scan found ${body.found} records in the clear.`, tone: bad ? 'bad' : 'good' })
      await again()
    } catch (error) {
      failed(error)
    }
    setScanning(false)
  }
  const out = async () => {
    await signOut().catch(() => {}) // an ended session is signed out, too
    leave('You have signed out.')
  }
  const { overview } = known
  const may = scope => overview.may.includes(scope)
  const due = overview.requests.due_in_7_days
  return html`
    <a class="skip" href="#page">Skip to the page</a>
    <header class="top">
      <h1>Operator</h1>
      <div class="row">
        <${Badge} ...${health(overview)} /> <${Badge} word=${`${due} due this week`} tone=${due ? 'open' : ''} />
        <button type="button" onClick=${out}>Sign out</button>
      </div>
    </header>
    <main>
      <${Health} overview=${overview} />
      <${Requests} overview=${overview} rows=${known.requests.requests} extend=${row => setAsked({ what: Extend, row })} />
      <div class="halves">
        <${Release} overview=${overview} releases=${known.releases.releases} start=${may('release') && (() => setAsked({ what: ReleaseNow }))} />
        <${Learning} jobs=${known.jobs.jobs} rounds=${known.rounds} live=${live} start=${may('jobs') && (() => setAsked({ what: StartGeneration }))}
          serve=${may('jobs') && (job => setAsked({ what: Serve, row: job }))} serving=${overview.release.generation} />
      </div>
      <${Audits} audits=${known.audits.audits} />
      <div class="halves">
        <${Witnesses} overview=${overview} witnesses=${known.witnesses} />
        <${Store} storage=${known.storage} scan=${may('scan') && scan} scanning=${scanning} />
      </div>
      ${may('people') && html`<div class="actions">
        <button type="button" class="bad" onClick=${() => setAsked({ what: Quarantine })}>Hold an account…</button></div>`}
    </main>
    <div class="message" role="status">${message.text && html`<p class=${`summary ${message.tone}`}>${message.text}
      <button type="button" onClick=${() => setMessage({ text: '', tone: 'good' })}>Close</button></p>`}</div>
    ${asked && html`<${asked.what} row=${asked.row} release=${overview.release} close=${close} />`}`
}

function App () {
  const [known, setKnown] = useState(null)
  const [why, setWhy] = useState('')
  const enter = useCallback(async () => {
    try {
      const { role } = await get('/v1/session')
      if (RUNS.includes(role)) setKnown(await read())
      else setWhy(role === 'anonymous' ? ABOUT : `You are signed in as a ${role}. Sign in as an operator.`)
    } catch (error) {
      setWhy(said(error))
    }
  }, [])
  useEffect(() => { enter() }, [])
  const leave = text => {
    setKnown(null)
    setWhy(text)
  }
  if (known) return html`<${Overview} first=${known} leave=${leave} />`
  return why ? html`<${Enter} enter=${enter} why=${why} />` : html`<p class="quiet" role="status">One moment…</p>`
}

const page = document.getElementById('page')
page.replaceChildren()
render(html`<${App} />`, page)
