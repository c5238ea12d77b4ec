// A page that is opened from a file may start no Worker. The search gets an iframe with the same messages instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.early = []
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.appendChild(frame)
      const inner = frame.contentWindow
      inner.postMessage = (data) => this.receive(data)
      inner.importScripts = (...urls) => Promise.all(urls.map((each) => this.load(inner, each)))
      this.load(inner, url).then(() => {
        this.inner = inner
        this.early.forEach((data) => this.postMessage(data))
      })
    }
    load(inner, url) {
      return new Promise((done, failed) => {
        const script = inner.document.createElement("script")
        script.src = new URL(url, document.baseURI).href
        script.onload = done
        script.onerror = failed
        inner.document.body.appendChild(script)
      })
    }
    receive(data) {
      const event = new MessageEvent("message", { data })
      this.dispatchEvent(event)
      if (this.onmessage) this.onmessage(event)
    }
    postMessage(data) {
      if (this.inner) this.inner.dispatchEvent(new this.inner.MessageEvent("message", { data }))
      else this.early.push(data)
    }
    terminate() {}
  }
}
