//! A real broker process: started, watched, stopped or killed.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

/// How long a broker may take to answer, stop or heal before a test gives up: generous, for loaded machines.
pub const DEADLINE: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Kept on the test's side; killed when dropped.
#[derive(Debug)]
pub struct Broker {
    child: Child,
    kafka: SocketAddr,
    admin: SocketAddr,
    log: Arc<Log>,
}

/// What to start.
#[derive(Clone, Debug)]
pub struct BrokerOptions {
    pub binary: PathBuf,
    /// `None`: local-dev mode, in memory.
    pub data_dir: Option<PathBuf>,
    /// 0: any free port.
    pub kafka_port: u16,
    pub arguments: Vec<String>,
    /// Of the environment.
    pub variables: Vec<(String, String)>,
}

impl BrokerOptions {
    #[must_use]
    pub fn new(binary: &Path, data_dir: &Path) -> Self {
        Self { data_dir: Some(data_dir.to_owned()), ..Self::in_memory(binary) }
    }

    #[must_use]
    pub fn in_memory(binary: &Path) -> Self {
        Self { binary: binary.to_owned(), data_dir: None, kafka_port: 0, arguments: Vec::new(), variables: Vec::new() }
    }

    /// The same broker on the port that it had before.
    #[must_use]
    pub fn on_port(mut self, port: u16) -> Self {
        self.kafka_port = port;
        self
    }

    #[must_use]
    pub fn with(mut self, arguments: &[&str]) -> Self {
        self.arguments.extend(arguments.iter().map(|&argument| argument.to_owned()));
        self
    }

    #[must_use]
    pub fn with_variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }
}

/// The broker's standard error, line by line.
#[derive(Debug, Default)]
struct Log {
    lines: Mutex<(Vec<String>, bool)>,
    changed: Condvar,
}

impl Log {
    fn follow(self: Arc<Self>, stream: impl Read + Send + 'static) {
        std::thread::spawn(move || {
            for line in BufReader::new(stream).lines().map_while(Result::ok) {
                self.lines.lock().expect("the lock is never poisoned").0.push(line);
                self.changed.notify_all();
            }
            self.lines.lock().expect("the lock is never poisoned").1 = true;
            self.changed.notify_all();
        });
    }

    /// Completes when all that the process has said is there: its end is known before its last lines are read.
    fn wait_for_end(&self) {
        let lines = self.lines.lock().expect("the lock is never poisoned");
        drop(self.changed.wait_timeout_while(lines, DEADLINE, |lines| !lines.1).expect("the lock is never poisoned"));
    }

    /// The first line that `pick` accepts, now or later.
    fn wait<T>(&self, pick: impl Fn(&str) -> Option<T>) -> Result<T> {
        let deadline = Instant::now() + DEADLINE;
        let mut lines = self.lines.lock().expect("the lock is never poisoned");
        let mut seen = 0;
        loop {
            if let Some(found) = lines.0[seen..].iter().find_map(|line| pick(line)) {
                return Ok(found);
            }
            seen = lines.0.len();
            let left = deadline.saturating_duration_since(Instant::now());
            if lines.1 || left.is_zero() {
                bail!("the broker never logged what was waited for; it said:\n{}", lines.0.join("\n"));
            }
            lines = self.changed.wait_timeout(lines, left).expect("the lock is never poisoned").0;
        }
    }
}

/// The address in a line such as `… listening on 127.0.0.1:9092 (Kafka)`.
fn address_behind(line: &str, words: &str) -> Option<SocketAddr> {
    line.split_once(words)?.1.split_whitespace().next()?.parse().ok()
}

impl Broker {
    /// Starts a broker and waits until it has bound its ports. It may still be taking partitions over.
    ///
    /// # Errors
    /// What the broker logged, if it ended instead.
    pub fn start(options: &BrokerOptions) -> Result<Self> {
        let mut command = Command::new(&options.binary);
        if let Some(data_dir) = &options.data_dir {
            command.arg("--data-dir").arg(data_dir);
        }
        let mut child = command
            .arg("--listen")
            .arg(format!("127.0.0.1:{}", options.kafka_port))
            .args(["--admin-listen", "127.0.0.1:0"])
            .args(&options.arguments)
            .envs(options.variables.iter().map(|(name, value)| (name, value)))
            .stderr(Stdio::piped())
            // Not the test's own: whoever reads that to its end would wait for a broker that was left behind.
            .stdout(Stdio::null())
            .stdin(Stdio::null())
            .spawn()
            .with_context(|| format!("start {}", options.binary.display()))?;
        let log = Arc::new(Log::default());
        Arc::clone(&log).follow(child.stderr.take().expect("standard error is piped"));
        let addresses = log
            .wait(|line| address_behind(line, "listening on "))
            .and_then(|kafka| Ok((kafka, log.wait(|line| address_behind(line, "admin on "))?)));
        match addresses {
            Ok((kafka, admin)) => Ok(Self { child, kafka, admin, log }),
            Err(error) => {
                child.kill().ok();
                child.wait().ok();
                Err(error)
            }
        }
    }

    #[must_use]
    pub fn kafka(&self) -> SocketAddr {
        self.kafka
    }

    /// Where it listens for heartbeats, in a cluster.
    ///
    /// # Errors
    /// It is in none.
    pub fn heartbeat(&self) -> Result<SocketAddr> {
        self.log.wait(|line| address_behind(line, "heartbeats on "))
    }

    #[must_use]
    pub fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for a log line with these words and returns it.
    ///
    /// # Errors
    /// If it does not come in time.
    pub fn wait_for_log(&self, words: &str) -> Result<String> {
        self.log.wait(|line| line.contains(words).then(|| line.to_owned()))
    }

    /// All lines logged so far.
    #[must_use]
    pub fn log_lines(&self) -> Vec<String> {
        self.log.lines.lock().expect("the lock is never poisoned").0.clone()
    }

    /// Waits until `/readyz` answers 200: every partition is led.
    ///
    /// # Errors
    /// If it does not in time.
    pub fn wait_ready(&self) -> Result<()> {
        wait_until("the broker is ready", || Ok(self.get("/readyz").is_ok_and(|(status, _)| status == 200)))
    }

    /// Status and body of a page of the admin endpoint.
    ///
    /// # Errors
    /// If there is no answer.
    pub fn get(&self, path: &str) -> Result<(u16, String)> {
        let mut stream = TcpStream::connect_timeout(&self.admin, DEADLINE)?;
        stream.set_read_timeout(Some(DEADLINE))?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: kaas\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").context("an HTTP response has an empty line")?;
        let status = head.split_whitespace().nth(1).context("a status line has three words")?.parse()?;
        Ok((status, body.to_owned()))
    }

    /// The sum of all samples of a metric whose labels contain `labels`.
    ///
    /// # Errors
    /// If the page can't be read or the metric is not on it.
    pub fn metric(&self, name: &str, labels: &str) -> Result<f64> {
        let (status, page) = self.get("/metrics")?;
        ensure!(status == 200, "/metrics answered {status}: {page}");
        let mut sum = None;
        for line in page.lines().filter(|line| !line.starts_with('#')) {
            let (series, value) = line.rsplit_once(' ').context("a sample has a value")?;
            if series.split('{').next() == Some(name) && series.contains(labels) {
                sum = Some(sum.unwrap_or(0.0) + value.parse::<f64>()?);
            }
        }
        sum.with_context(|| format!("no metric {name} with {labels} in:\n{page}"))
    }

    /// Resident memory in bytes.
    ///
    /// # Errors
    /// If the process is gone.
    pub fn resident_bytes(&self) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process_id()))?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).context("no VmRSS")?;
        Ok(line.split_whitespace().nth(1).context("VmRSS has a value")?.parse::<u64>()? * 1024)
    }

    /// CPU time used so far by all threads.
    ///
    /// # Errors
    /// If the process is gone.
    pub fn cpu_time(&self) -> Result<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process_id()))?;
        let fields = stat.rsplit_once(')').context("stat names the program")?.1;
        // Fields 14 and 15 of proc(5), user and system time in ticks of 10 ms.
        let ticks: u64 = fields.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse().unwrap_or(0)).sum();
        Ok(Duration::from_millis(ticks * 10))
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// If the process is gone.
    pub fn signal(&self, name: &str) -> Result<()> {
        let status = Command::new("kill").args(["-s", name, &self.process_id().to_string()]).status()?;
        ensure!(status.success(), "kill -s {name} failed");
        Ok(())
    }

    /// Waits for the process to end by itself; its log is complete then.
    ///
    /// # Errors
    /// If it does not in time.
    pub fn wait(&mut self) -> Result<ExitStatus> {
        let deadline = Instant::now() + DEADLINE;
        loop {
            if let Some(status) = self.child.try_wait()? {
                self.log.wait_for_end();
                return Ok(status);
            }
            ensure!(Instant::now() < deadline, "the broker did not end; it said:\n{}", self.log_lines().join("\n"));
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Asks it to stop (SIGTERM) and waits.
    ///
    /// # Errors
    /// If it does not in time.
    pub fn stop(mut self) -> Result<ExitStatus> {
        self.signal("TERM")?;
        self.wait()
    }

    /// `kill -9`.
    ///
    /// # Errors
    /// If the process can't be waited for.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // It may have ended already; then there is nothing to do.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Asks again and again until `condition` holds.
///
/// # Errors
/// If it does not within [`DEADLINE`], or the condition itself fails.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + DEADLINE;
    while !condition()? {
        ensure!(Instant::now() < deadline, "waited {DEADLINE:?} in vain: {what}");
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}
