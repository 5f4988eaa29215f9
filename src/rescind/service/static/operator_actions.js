/** What an operator can do: each in a dialog that says what it means before it happens. */
import { Refused, Unanswered, once } from './api.js'
import { html, useEffect, useRef, useState } from './html.js'
import { count, lawful, moment } from './times.js'

const RECIPES = ['Softmax', 'FedShare', 'Blend']

/** Say an error in words: what was wrong, and what to do. @param {Error} error */
export function said (error) {
  if (error instanceof Refused) return `${error.problem.detail} ${error.problem.next ?? ''}`.trim()
  if (error instanceof Unanswered) return 'The service cannot be reached. Try again when it can.'
  return error.message
}

/**
 * A dialog with a form. It stays open, with the reason, until the service has answered.
 * @param {{title: string, does: string, children: any, send: (values: Record<string, string>) => Promise<string>, close: (message?: string) => void}} props
 */
function Ask ({ title, does, children, send, close }) {
  const box = useRef(null)
  const [error, setError] = useState('')
  const [busy, setBusy] = useState(false)
  useEffect(() => {
    const [dialog, opener] = [box.current, document.activeElement]
    dialog.showModal()
    return () => {
      dialog.close() // while it is modal, nothing else can have the focus
      opener?.focus()
    }
  }, [])
  const submit = async event => {
    event.preventDefault()
    if (busy) return // a double click is one click
    setBusy(true)
    setError('')
    try {
      close(await send(Object.fromEntries(new FormData(event.target))))
    } catch (failure) {
      setError(said(failure))
      setBusy(false)
    }
  }
  const cancel = event => {
    event.preventDefault()
    if (!busy) close()
  }
  return html`<dialog ref=${box} aria-labelledby="asked" onCancel=${cancel}>
    <h2 id="asked">${title}</h2>
    <form onSubmit=${submit}>
      ${children}
      ${error && html`<p class="summary bad" role="alert">${error}</p>`}
      <div class="actions">
        <button type="submit" class="main" aria-disabled=${busy}>${busy ? 'One moment…' : does}</button>
        <button type="button" onClick=${cancel}>Cancel</button>
      </div>
    </form>
  </dialog>`
}

export function ReleaseNow ({ release, close }) {
  const { next, rules } = release
  const changed = next.people_left == null ? 0 : rules.people - next.people_left
  const send = async () => {
    await once('POST', '/v1/operator/releases', {})
    return 'A release was made. Requests that waited for it get their receipts.'
  }
  return html`<${Ask} title="Release now?" does="Release now" send=${send} close=${close}>
    <p>${count(changed)} of ${count(rules.people)} people of the last one have other loans now. The fewer a
    release mixes, the more somebody learns who compares it with the one before. The receipts will say how
    few they were.</p>
  <//>`
}

export function Extend ({ row, close }) {
  const [days, setDays] = useState('7')
  const due = Date.parse(row.expected_by) + 86400000 * Math.min(60, Math.max(0, Number(days)))
  const send = async ({ days, reason }) => {
    const path = `/v1/operator/requests/${row.request_id}/extend`
    const { body } = await once('POST', path, { days: Number(days), reason })
    return `Request ${row.request_id.slice(0, 8)} is now due ${moment(body.expected_by)}.${body.warning ? ` Careful: ${body.warning}.` : ''}`
  }
  return html`<${Ask} title=${`More time for request ${row.request_id.slice(0, 8)}`} does="Extend" send=${send} close=${close}>
    <p>It is due ${moment(row.expected_by)}. Its person's page says the reason, in your words, in place of an earlier one. No mail is sent.</p>
    <label for="days">Days more (1 to 60)</label>
    <input id="days" name="days" type="number" min="1" max="60" value=${days} required
      onInput=${event => setDays(event.currentTarget.value)} />
    <p role="status">Then it is due ${moment(new Date(due).toISOString())}.
      ${due < lawful(row.received_at) ? '' : html` <strong>Careful:</strong> more than three months after it arrived; the law allows no more.`}</p>
    <label for="reason">Reason</label>
    <textarea id="reason" name="reason" rows="3" maxlength="500" required></textarea>
  <//>`
}

export function StartGeneration ({ close }) {
  const send = async ({ recipe, rounds }) => {
    await once('POST', '/v1/operator/jobs', { recipe, rounds: Number(rounds) })
    return `A generation of ${recipe} has begun.`
  }
  return html`<${Ask} title="Start a generation" does="Start" send=${send} close=${close}>
    <p>A recipe learns from the loans of this moment, in a process of its own. Whatever is taken back meanwhile
    makes it begin anew.</p>
    <label for="recipe">Recipe</label>
    <select id="recipe" name="recipe">${RECIPES.map(name => html`<option key=${name}>${name}</option>`)}</select>
    <label for="rounds">Rounds (1 to 10,000)</label>
    <input id="rounds" name="rounds" type="number" min="1" max="10000" value="150" required />
  <//>`
}

/** @param {{row: any, close: any}} props row: a generation that is ready; null: the release alone */
export function Serve ({ row, close }) {
  const send = async () => {
    await once('POST', '/v1/operator/serving', { generation: row?.id ?? null })
    return row ? `Generation ${row.id.slice(0, 8)} is served beside the release.` : 'The release alone is served.'
  }
  return html`<${Ask} title=${row ? 'Serve this generation?' : 'Serve the release alone?'} does="Serve it" send=${send} close=${close}>
    <p>${row
      ? 'People it learnt from get its lists. A take-back makes it stale at once: from then on the release is served.'
      : 'Everybody gets lists of the release again.'}</p>
  <//>`
}

export function Quarantine ({ close }) {
  const send = async ({ person, reason }) => {
    const { body } = await once('POST', `/v1/operator/people/${person}/quarantine`, { reason })
    return `The account is held, and ${count(body.n)} records left the store and the sum.`
  }
  return html`<${Ask} title="Hold an account" does="Hold the account" send=${send} close=${close}>
    <p>Its loans leave the store and the sum at once, and it cannot lend. A loan is a copy: the person still has
    the records. This cannot be undone here.</p>
    <label for="person">Account (32 hexadecimal digits)</label>
    <input id="person" name="person" pattern="[0-9a-f]{32}" autocomplete="off" spellcheck=${false} required />
    <label for="reason">Reason</label>
    <textarea id="reason" name="reason" rows="3" maxlength="500" required></textarea>
  <//>`
}
