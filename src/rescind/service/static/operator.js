/** The operator's page: is it healthy, what is due, what is learning, what did the last audit say. */
import { Refused, call } from './api.js'
import { html, render, useCallback, useEffect, useState } from './html.js'
import { Extend, Quarantine, ReleaseNow, StartGeneration, said } from './operator_actions.js'
import { accept, invitation, signIn, signOut } from './operator_entry.js'
import { Audits, Badge, Health, Learning, Release, Requests, Store, Witnesses, health } from './operator_parts.js'
import { follow, read, withRound } from './operator_state.js'

/** @param {{enter: () => void, why: string}} props */
function Enter ({ enter, why }) {
  const invited = invitation()
  const [error, setError] = useState('')
  const go = async () => {
    setError('')
    try {
      await (invited ? accept(invited) : signIn())
      enter()
    } catch (failure) {
      setError(said(failure))
    }
  }
  return html`<main class="enter card">
    <h1>Operator</h1>
    <p>${invited ? 'You are invited to run this service. Make a passkey on this device: it is how you come in from now on.' : why}</p>
    <button type="button" class="main" onClick=${go}>${invited ? 'Make a passkey' : 'Sign in with a passkey'}</button>
    ${error && html`<p class="summary bad" role="alert">${error}</p>`}
    <p class="note">New operators are invited with <code>rescind serve --invite-operator</code>. Your own records
    are on <a href="/">the other page</a>.</p>
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
      const { body } = await call('POST', '/v1/operator/scan')
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
      <${Requests} overview=${overview} rows=${known.requests.requests} extend=${row => setAsked({ what: Extend, row })} />
      <div class="halves">
        <${Release} overview=${overview} releases=${known.releases.releases} start=${() => setAsked({ what: ReleaseNow })} />
        <${Learning} jobs=${known.jobs.jobs} rounds=${known.rounds} live=${live} start=${() => setAsked({ what: StartGeneration })} />
      </div>
      <${Audits} audits=${known.audits.audits} />
      <div class="halves">
        <${Witnesses} overview=${overview} witnesses=${known.witnesses} />
        <${Store} storage=${known.storage} scan=${scan} scanning=${scanning} />
      </div>
      <${Health} overview=${overview} />
      <div class="actions"><button type="button" class="bad" onClick=${() => setAsked({ what: Quarantine })}>Hold an account…</button></div>
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
      setKnown(await read())
    } catch (error) {
      const stranger = error instanceof Refused && [401, 404].includes(error.status)
      const other = stranger && error.status === 404
      setWhy(other ? 'You are signed in as somebody else. Sign in as an operator.' : stranger ? 'Counts and times of this service, for those who run it.' : said(error))
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
