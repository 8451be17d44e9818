// Keys and values that mean harm: they are text, and nothing else.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { console_, end, ledger, noted, open, visit } from "./bed.js";

const HIT = "window.told('hit')";
const MARKUP = [
  `<script>${HIT}</script>`, `<img src=x onerror="${HIT}">`, `<svg onload="${HIT}">`, `<svg><script>${HIT}</script></svg>`,
  `"><script>${HIT}</script>`, `'><img src=x onerror=${HIT}>`, `</pre><script>${HIT}</script>`, `</bdi></a><a href="javascript:${HIT}">x</a>`,
  `<a href="javascript:${HIT}">x</a>`, `<iframe src="javascript:parent.told('hit')">`, `<iframe srcdoc="<script>parent.told('hit')</script>">`,
  `<object data="javascript:${HIT}">`, `<embed src="javascript:${HIT}">`, `<form action="http://evil.example"><input name=x autofocus onfocus="${HIT}">`,
  `<base href="http://evil.example/">`, `<meta http-equiv="refresh" content="0;url=http://evil.example/">`, `<link rel=stylesheet href="http://evil.example/x.css">`,
  `<style>@import "http://evil.example/x.css";</style>`, `<style>*{background:url(http://evil.example/x)}</style>`, `<video src=http://evil.example/v onerror="${HIT}">`,
  `<details open ontoggle="${HIT}">`, `<body onload="${HIT}">`, `<math><mtext><script>${HIT}</script></mtext></math>`, `<!--><img src=x onerror=${HIT}>-->`,
  `<template><script>${HIT}</script></template>`, `<noscript><p title="</noscript><img src=x onerror=${HIT}>">`, `&lt;script&gt;${HIT}&lt;/script&gt;`,
  `<img src="http://evil.example/pixel.png">`, `<portal src=http://evil.example>`, `<x onclick="${HIT}" tabindex=1 onfocus="${HIT}" autofocus>x</x>`,
];
const ADDRESSES = [
  `javascript:${HIT}`, `data:text/html,<script>${HIT}</script>`, "//evil.example/", "http://evil.example/", "\\\\evil.example\\x", "../../../../etc/passwd",
  "?version=1#/about", "#/record?key=x", "/#00000000000000000000000000000000/about", "a&version=1&key=b", "%00%0d%0aSet-Cookie:x", "%2e%2e%2f", "..", ".", "/", "%",
];
const PROGRAMS = [
  "${window.told('hit')}", "{{constructor.constructor('window.told(1)')()}}", "__proto__", "constructor", "toString", "hasOwnProperty",
  `{"__proto__":{"polluted":1}}`, `{"dangerouslySetInnerHTML":{"__html":"<img src=x onerror=${HIT}>"}}`, `{"type":"script","props":{}}`, "'; DROP TABLE records; --",
  `=HYPERLINK("http://evil.example")`, `$(touch /tmp/x)`, "`touch /tmp/x`", "0x", "text:", "0xzz",
];
const CHARACTERS = [
  "\u202eevil\u202c", "\u2066\u2069\u200f", "\u0000\u0001\u0007\u001b[31mred", "\r\n\r\nHTTP/1.1 200 OK", "\u200b\u200c\u200d\ufeff", "a\u0300\u0301\u0302".repeat(60),
  "\ud83d\udc69\u200d\ud83d\udc69\u200d\ud83d\udc67", "\u2028\u2029", "\u3164", "\u00a0 ", "W".repeat(500), "\t".repeat(20), "\u{e0001}\u{e0041}", "ﷺ".repeat(100),
];
const PAYLOADS = [...MARKUP, ...ADDRESSES, ...PROGRAMS, ...CHARACTERS];

let [book, con] = [];

before(async () => {
  book = await ledger("hostile");
  const key = (text) => Buffer.from(text).subarray(0, 512).toString("utf8").replace(/\ufffd+$/, "");
  await book.commit({ put: PAYLOADS.map((payload) => [key(payload), payload]) });
  await book.commit({ put: PAYLOADS.map((payload) => [key(payload), `${payload} again`]) });
  con = await console_(book.endpoint, ["--trust", `@${book.keyFile}`]);
});

after(end);

test("60 payloads as keys and values run nothing, lead nowhere, and break no policy", async () => {
  assert.ok(PAYLOADS.length >= 60, String(PAYLOADS.length));
  const { page, asked, wrong, close } = await open();
  await visit(page, con.to("range"));
  const links = await page.$$eval("tbody th a", (found) => found.map((link) => link.getAttribute("href")));
  assert.equal(links.length, new Set(PAYLOADS).size, "each is in the range");
  for (const link of links) {
    assert.ok(link.startsWith(`#${con.secret}/record?key=`), link);
    for (const route of [link, link.replace("/record?", "/history?")]) {
      await visit(page, con.origin + "/" + route);
      const text = await page.textContent("main");
      assert.ok(!text.includes("does not hold"), `${route}: ${text}`);
      assert.equal(await page.evaluate(() => document.querySelectorAll("main script, main img, main iframe, main style, main [onerror]").length), 0, link);
      const shown = await page.evaluate(() => document.querySelector("main").textContent);
      assert.ok(!/[\u0000-\u0008\u000b-\u001f\u200b-\u200f\u202a-\u202e\u2066-\u2069]/.test(shown), `invisible characters: ${JSON.stringify(shown)}`);
    }
    assert.ok((await badgesOf(page)) > 0, link);
  }
  for (const route of ["diff?from=1&to=2", "timeline", "log"]) await visit(page, con.to(route));
  assert.deepEqual(wrong, []);
  assert.ok(page.url().startsWith(`${con.origin}/#`));
  assert.deepEqual(asked.filter((url) => !url.startsWith(`${con.origin}/`) && url !== "data:,"), []);
  assert.equal(await page.evaluate(() => ({}).polluted), undefined);
  await close();
});

const badgesOf = (page) => page.$$eval("main .badge.proven", (found) => found.length);

test("hostile addresses of pages run nothing", async () => {
  const { page, asked, wrong, close } = await open();
  await visit(page, con.to("head"));
  for (const payload of [...MARKUP.slice(0, 6), ...ADDRESSES]) {
    for (const hash of [`#${payload}`, `#${con.secret}/${payload}`, `#${con.secret}/record?key=${encodeURIComponent(payload)}&version=${encodeURIComponent(payload)}`]) {
      await visit(page, `${con.origin}/${hash}`);
    }
  }
  assert.deepEqual(wrong, []);
  assert.deepEqual(asked.filter((url) => !url.startsWith(`${con.origin}/`) && url !== "data:,"), []);
  await close();
});

test("the policy is in force: a script that gets into the page does not run", async () => {
  const { page, wrong, close } = await open();
  await visit(page, con.to("head"));
  await page.evaluate(() => {
    const script = document.createElement("script");
    try {
      script.textContent = "window.told('ran')";
      document.body.append(script);
    } catch {
      // Trusted Types refuse the text.
    }
    try {
      document.body.innerHTML += "<img src=x onerror=window.told('ran')>";
    } catch {
      // As above.
    }
    try {
      window.trustedTypes.createPolicy("mine", { createHTML: (text) => text });
      window.told("a policy of a stranger");
    } catch {
      // One name alone is allowed.
    }
    return fetch("http://127.0.0.1:9/").catch(() => null);
  });
  assert.ok(await noted(wrong, "require-trusted-types-for"), wrong.join());
  assert.ok(await noted(wrong, "connect-src"), wrong.join());
  assert.ok(!wrong.includes("ran") && !wrong.includes("a policy of a stranger"), wrong.join());
  await close();
});
