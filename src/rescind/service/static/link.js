/** The page behind the link of a request: no account, for 60 days. */
import { get } from './api.js'
import { Catalogue } from './catalogue.js'
import { html, render } from './html.js'
import { openDevice } from './keep.js'
import { Papers, Request } from './taken.js'
import { when } from './words.js'

const TIME = /\d{4}-\d\d-\d\dT[\d:.]+Z/g
const page = document.getElementById('page')
const path = location.pathname
page.replaceChildren()
try {
  const [device, request] = [await openDevice(), await get(path)]
  const left = await device.get('facts', 'left')
  const mine = left?.request_id === request.request_id ? left : undefined
  const items = (await device.get('facts', 'catalogue'))?.items ?? []
  // The reason of a delay stands with the request, with its day.
  const says = request.processing_details.replace(`It takes longer: ${request.delay}`, '')
  render(html`<main><h1>What you took back</h1>
    <p class="lead">${says.replace(TIME, when)}</p>
    <div class="card"><${Request} request=${request} mine=${mine} device=${device} path=${path} catalogue=${new Catalogue(items)} /></div>
    <${Papers} /></main>`, page)
} catch (error) {
  render(html`<main class="entry"><h1>What you took back</h1>
    <p class="summary bad" role="alert">${error.message} A link works for 60 days.</p></main>`, page)
}
