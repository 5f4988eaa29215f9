/* Search runs in a worker, and a page opened as a file may not start one. There, this stands in for it: a hidden frame
   that runs the same script. Pages from a server keep the browser's own worker. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const own = new URL(url, location.href);
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      const load = (address) => new Promise((done, failed) => {
        const script = frame.contentDocument.createElement("script");
        script.src = new URL(address, own).href;
        script.onload = done;
        script.onerror = () => failed(new Error("cannot read " + address));
        frame.contentDocument.head.append(script);
      });
      this.inside.importScripts = (...all) =>
        all.reduce((before, one) => before.then(() => load(one)), Promise.resolve());
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.ready = load(own);
    }

    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.inside.frameElement.remove();
    }
  };
}
