//! The page in a real browser, which needs no window: what a person sees, enters and clicks.
//!
//! `PARTITA_TEST_BROWSER` names a Chromium; otherwise the test looks for one in `PATH`, and says
//! that it was skipped if there is none.

use crate::common;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::{Daemon, World};
use partita_testing::{eventually, is_long, needs_simulator, succeed};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// The page with all that it loads, in bytes on the wire.
const BYTES_MAX: f64 = 300_000.0;

const ALL: &str = "0123456789abcdef0123456789abcdef";
const READ: &str = "fedcba9876543210fedcba9876543210";
const OTHER: &str = "00112233445566778899aabbccddeeff";

fn browser() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("PARTITA_TEST_BROWSER") {
        return Some(path.into());
    }
    let found = ["chromium-headless-shell", "chromium"].into_iter().find_map(|name| {
        let path = std::env::var_os("PATH")?;
        std::env::split_paths(&path).map(|dir| dir.join(name)).find(|path| path.exists())
    });
    if found.is_none() {
        eprintln!("skipped: there is no Chromium; PARTITA_TEST_BROWSER names one");
    }
    found
}

/// A tab of a browser, steered over a pair of pipes by the protocol of Chromium's tools.
struct Tab {
    browser: Child,
    orders: File,
    answers: BufReader<File>,
    session: Option<String>,
    number: u64,
    /// What the page has written to the console, and what was refused to it.
    console: Vec<String>,
}

impl Tab {
    fn open(program: &Path, dir: &Path) -> Self {
        let (orders, answers) = (dir.join("orders"), dir.join("answers"));
        succeed(Command::new("mkfifo").args([&orders, &answers]));
        // The browser reads orders from descriptor 3 and writes answers to 4.
        let browser = Command::new("sh")
            .args(["-c", r#"exec "$0" "$@" 3<>orders 4<>answers"#])
            .arg(program)
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            .args(["--remote-debugging-pipe", "--no-first-run", "--disable-background-networking"])
            .arg(format!("--user-data-dir={}", dir.join("profile").display()))
            .current_dir(dir)
            .env("HOME", dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(dir.join("browser.log")).unwrap())
            .spawn()
            .unwrap();
        let mut tab = Self {
            browser,
            orders: File::options().write(true).open(&orders).unwrap(),
            answers: BufReader::new(File::open(&answers).unwrap()),
            session: None,
            number: 0,
            console: Vec::new(),
        };
        let target = tab.order("Target.createTarget", &json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        tab.session = tab.order("Target.attachToTarget", &attach)["sessionId"].as_str().map(str::to_owned);
        for part in ["Page", "Runtime", "Log"] {
            tab.order(&format!("{part}.enable"), &json!({}));
        }
        tab
    }

    fn order(&mut self, method: &str, parameters: &Value) -> Value {
        self.number += 1;
        let mut order = json!({ "id": self.number, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            order["sessionId"] = json!(session);
        }
        self.orders.write_all(format!("{order}\0").as_bytes()).unwrap();
        loop {
            let mut message = Vec::new();
            self.answers.read_until(0, &mut message).unwrap();
            assert_eq!(message.pop(), Some(0), "the browser has ended");
            let message: Value = serde_json::from_slice(&message).unwrap();
            if message["id"] == self.number {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].clone();
            }
            let said = match message["method"].as_str() {
                Some("Log.entryAdded") => &message["params"]["entry"],
                Some("Runtime.exceptionThrown") => &message["params"]["exceptionDetails"],
                Some("Runtime.consoleAPICalled") => &message["params"],
                _ => continue,
            };
            self.console.push(said.to_string());
        }
    }

    fn show(&mut self, address: &str) {
        self.order("Page.navigate", &json!({ "url": address }));
    }

    /// The value of an expression in the page.
    fn value(&mut self, expression: &str) -> Value {
        let order = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let answer = self.order("Runtime.evaluate", &order);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    fn wait_for(&mut self, expression: &str) {
        let shown = "document.body?.innerText";
        let mut last = Value::Null;
        eventually(&format!("in the page: {expression}"), || {
            last = self.value(&format!("[Boolean({expression}), {shown}]"));
            last[0] == true
        });
    }

    /// Enters a text as a person does, and the button after it.
    fn enter(&mut self, fields: &[(&str, &str)], form: &str) {
        for (field, text) in fields {
            self.value(&format!("document.querySelector({field:?}).value = {text:?}"));
        }
        self.value(&format!("document.querySelector({form:?}).requestSubmit()"));
    }

    fn sign_in(&mut self, token: &str) {
        self.wait_for("!(document.querySelector('#sign-in')?.hidden ?? true)");
        self.enter(&[("#token", token)], "#sign-in");
    }
}

impl Drop for Tab {
    fn drop(&mut self) {
        let _ = self.browser.kill();
        let _ = self.browser.wait();
    }
}

/// A program that runs under Partita.
struct Tenant(Child);

impl Tenant {
    fn start(world: &World, name: &str) -> Self {
        let arguments = ["run", "--name", name, "--sm", "1tpc", "--mem", "64MiB", "--", "sleep", "1000"];
        Self(world.partita(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        if let Some(pid) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let _ = self.0.wait();
    }
}

fn start(world: &World, listen: &str, all: &str) -> (Daemon, String) {
    let (all, read) = (world.token_file("all", all), world.token_file("read", READ));
    let daemon = world.start_with(["--listen", listen, "--token-file", &all, "--read-token-file", &read]);
    let address = daemon.address();
    (daemon, address)
}

#[test]
fn a_person_sees_tenants_and_resizes_one() {
    let Some(program) = browser() else { return };
    if needs_simulator("tenants of a known GPU") {
        return;
    }
    let world = World::new();
    let (mut daemon, address) = start(&world, "127.0.0.1:0", ALL);
    let count = if is_long() { 48 } else { 4 };
    let names: Vec<String> = (0..count).map(|at| format!("tenant-{at:02}")).collect();
    let _tenants: Vec<Tenant> = names.iter().map(|name| Tenant::start(&world, name)).collect();
    eventually("all tenants are there", || daemon.get("/v1/tenants").as_array().unwrap().len() == count);

    let dir = world.dir().join("browser");
    fs::create_dir(&dir).unwrap();
    let mut tab = Tab::open(&program, &dir);
    tab.show(&format!("http://{address}/"));
    tab.sign_in("not a token of this daemon");
    tab.wait_for("document.querySelector('#sign-in-problem').innerText.includes('no space')");
    tab.sign_in(OTHER);
    tab.wait_for("document.querySelector('#sign-in-problem').innerText.includes('does not take this token')");
    tab.wait_for("sessionStorage.length === 0");

    // Whoever has the second token looks.
    tab.sign_in(READ);
    tab.wait_for(&format!("document.querySelectorAll('#tenants tr[data-tenant]').length === {count}"));
    // Each tenant has its number in the map, and no TPC of another one.
    tab.wait_for(&format!(
        "new Set([...document.querySelectorAll('.tpc')].map((tpc) => tpc.innerText).filter(Boolean)).size === {count}"
    ));
    assert_eq!(tab.value("document.querySelectorAll('.tpc:not(.fused)').length"), 66);
    let label = tab.value("document.querySelector('.map').getAttribute('aria-label')");
    assert!(label.as_str().unwrap().contains("tenant-00: 2 SMs"), "{label}");
    tab.wait_for("document.querySelectorAll('#charts canvas').length === 4");
    tab.wait_for("document.title.startsWith('Partita')");
    assert_eq!(tab.value("document.querySelector('#resize fieldset').disabled"), true);
    let bytes = tab.value("performance.getEntries().reduce((sum, one) => sum + (one.transferSize ?? 0), 0)");
    assert!(bytes.as_f64().is_some_and(|bytes| bytes > 50_000.0 && bytes <= BYTES_MAX), "{bytes} bytes");
    // On a narrow screen parts scroll, the page does not.
    let screen = json!({ "width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": false });
    tab.order("Emulation.setDeviceMetricsOverride", &screen);
    tab.wait_for("document.documentElement.scrollWidth <= 390");
    tab.order("Emulation.clearDeviceMetricsOverride", &json!({}));
    let paint = tab.value("performance.getEntriesByName('first-contentful-paint')[0]?.startTime");
    let update = tab.value("performance.getEntriesByName('partita-update')[0].duration");
    println!("{count} tenants: first paint {paint} ms, update {update} ms, {bytes} bytes");

    // Whoever has the first one changes.
    tab.value("document.querySelector('#sign-out').click()");
    tab.sign_in(ALL);
    tab.wait_for("document.querySelector('#resize fieldset').disabled === false");
    tab.wait_for(&format!("document.querySelectorAll('#resize option[value^=tenant]').length === {count}"));
    tab.enter(&[("[name=tenant]", "tenant-01"), ("[name=sm]", "3tpc"), ("[name=mem]", "128MiB")], "#resize");
    tab.wait_for("document.querySelector('#resize-result').innerText.includes('tenant-01 has 6 SMs')");
    let part = &daemon.get("/v1/tenants/tenant-01")["parts"][0];
    assert_eq!((&part["sms"], &part["memory_quota_bytes"]), (&json!(6), &json!(128 << 20)));
    tab.wait_for("document.querySelector('[data-tenant=tenant-01]').innerText.includes('128 MiB')");
    tab.wait_for("document.querySelector('#events').innerText.includes('tenant-01 of')");
    tab.enter(&[("[name=sm]", "999%")], "#resize");
    tab.wait_for("document.querySelector('#resize-result.bad')?.innerText.includes('sm')");
    tab.wait_for("document.querySelector('[name=sm]').ariaInvalid === 'true'");
    assert_eq!(daemon.get("/v1/tenants/tenant-01")["parts"][0]["sms"], 6);

    // Another daemon has the place of the first one, and another token.
    daemon.kill();
    tab.wait_for("document.querySelector('#status').dataset.state === 'bad'");
    let (daemon, _) = start(&world, &address, OTHER);
    tab.wait_for("document.querySelector('#sign-in-problem').innerText.includes('does not take this token')");
    tab.sign_in(OTHER);
    tab.wait_for("document.querySelector('#status').dataset.state === 'live'");

    // Nothing failed but what was refused on purpose.
    for line in &tab.console {
        let is_refusal = ["401", "422", "ERR_CONNECTION", "ERR_INCOMPLETE", "ERR_EMPTY"].iter().any(|sign| {
            line.contains(sign) && line.contains("Failed to load resource") || line.contains("net::")
        });
        assert!(is_refusal, "{line}");
    }
    drop(daemon);
}
