//! A client of the daemon `partitad`: it finds the socket, checks who listens, and sends requests.
//!
//! HTTP/1.1, one blocking connection for each request. Over a Unix socket: every user can write to
//! its directory, so the client asks the kernel which user listens. It talks only to daemons of
//! root and of its own user. Over TCP, for the daemon of another machine: with a token.
//!
//! ```no_run
//! use partita_chain_host::daemon::Client;
//! use partita_host::registry::Registry;
//!
//! # fn main() -> Result<(), partita_host::Error> {
//! if let Some(daemon) = Client::find(&Registry::open()?)? {
//!     let chains = daemon.get("/v1/chains")?;
//!     println!("{chains}");
//! }
//! # Ok(())
//! # }
//! ```

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use partita_host::error::Error;
use partita_host::registry::{Registry, check_name};
use rustix::net::sockopt::socket_peercred;
use serde_json::Value;

/// Overrides where the daemon's socket is.
pub const SOCKET_VARIABLE: &str = "PARTITAD_SOCKET";
/// Timeout of an answer. The daemon itself answers or reports a timeout within ten seconds.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout of a connection over TCP.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest answer that is read, in bytes.
const ANSWER_BYTES_MAX: u64 = 64 << 20;
/// The longest header line that is read, in bytes.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// The default socket of a user's daemon.
pub fn socket_of(registry: &Registry, user: u32) -> PathBuf {
    registry.root().join(format!(".partitad-{user}.sock"))
}

/// A running daemon.
#[derive(Debug, Clone)]
pub struct Client {
    at: At,
}

/// Where a daemon listens.
#[derive(Debug, Clone)]
enum At {
    Socket(PathBuf),
    /// A host and a port, and the token to show there.
    Network {
        authority: String,
        token: String,
    },
}

/// An answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// Its body; null without one.
    pub body: Value,
}

impl Client {
    /// The daemon that serves the current user: the one that `PARTITAD_SOCKET` names, else the
    /// user's, else root's. `None` if no daemon runs.
    ///
    /// # Errors
    /// [`Error::Daemon`] if the variable names a socket that no daemon of root or of this user
    /// listens on, and for a user in system mode if root's does not answer.
    pub fn find(registry: &Registry) -> Result<Option<Self>, Error> {
        if let Some(path) = std::env::var_os(SOCKET_VARIABLE).filter(|path| !path.is_empty()) {
            let client = Self::at(Path::new(&path));
            client.connect()?;
            return Ok(Some(client));
        }
        let user = rustix::process::geteuid().as_raw();
        let sockets = [socket_of(registry, user), socket_of(registry, 0)];
        // A daemon that was killed leaves its socket, which refuses connections.
        let found = sockets.iter().map(|path| Self::at(path)).find(|client| client.connect().is_ok());
        if found.is_none() && registry.is_client() {
            return Err(Error::Daemon {
                socket: socket_of(registry, 0),
                reason: "it does not answer, and definitions are stored there; root starts it again with \
                         `systemctl restart partitad`"
                    .to_owned(),
            });
        }
        Ok(found)
    }

    /// The daemon at a socket, which need not exist.
    pub fn at(socket: &Path) -> Self {
        Self { at: At::Socket(socket.to_owned()) }
    }

    /// The daemon, which need not exist, and the name in a chain's URL, such as
    /// `http://127.0.0.1:7878/detect`, with the daemon's token.
    ///
    /// # Errors
    /// [`Error::Refused`] for another form of URL, and for a token that no header can have.
    pub fn of_chain(url: &str, token: &str) -> Result<(Self, String), Error> {
        let refuse = |reason: &str| Error::Refused { what: url.to_owned(), reason: reason.to_owned() };
        let is_byte = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]".contains(&byte);
        let is_authority = |(host, port): (&str, &str)| {
            !host.is_empty() && host.bytes().all(is_byte) && port.parse::<u16>().is_ok()
        };
        let parts = url.strip_prefix("http://").and_then(|rest| rest.split_once('/'));
        let parts = parts.filter(|(authority, name)| {
            authority.rsplit_once(':').is_some_and(is_authority) && check_name(name).is_ok()
        });
        let (authority, name) = parts.ok_or_else(|| {
            refuse(
                "give http://HOST:PORT/CHAIN; partitad speaks no TLS, so reach another machine through a \
                 tunnel, such as ssh -L",
            )
        })?;
        if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(refuse("its token is empty or has characters that no token has"));
        }
        let at = At::Network { authority: authority.to_owned(), token: token.to_owned() };
        Ok((Self { at }, name.to_owned()))
    }

    /// Sends `GET` for a path and returns the body of the answer.
    ///
    /// # Errors
    /// [`Error::Daemon`], with the daemon's message if it refuses.
    pub fn get(&self, path: &str) -> Result<Value, Error> {
        self.ask("GET", path, None)
    }

    /// Sends a request and returns the body of the answer.
    ///
    /// # Errors
    /// [`Error::Daemon`], with the daemon's message if it refuses.
    pub fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value, Error> {
        let answer = self.request(method, path, body)?;
        if (200..300).contains(&answer.status) {
            return Ok(answer.body);
        }
        let detail = answer.body.get("detail").and_then(Value::as_str);
        Err(self.failed(match detail {
            Some(detail) => detail.to_owned(),
            None => format!("{method} {path} failed with status {}", answer.status),
        }))
    }

    /// Sends a request and returns the answer, whatever its status.
    ///
    /// # Errors
    /// [`Error::Daemon`] if there is no answer.
    pub fn request(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Answer, Error> {
        let stream = self.send(method, path, body)?;
        Reply::read(stream).and_then(Reply::json).map_err(|error| self.failed(error.to_string()))
    }

    /// The data of each event of a stream, until it ends.
    ///
    /// # Errors
    /// [`Error::Daemon`] if there is no such stream.
    pub fn events(&self, path: &str) -> Result<impl Iterator<Item = io::Result<Value>> + use<>, Error> {
        let stream = self.send("GET", path, None)?;
        let reply = Reply::read(stream).map_err(|error| self.failed(error.to_string()))?;
        if reply.status != 200 {
            let answer = reply.json().map_err(|error| self.failed(error.to_string()))?;
            let detail = answer.body.get("detail").and_then(Value::as_str).unwrap_or("no stream").to_owned();
            return Err(self.failed(detail));
        }
        let lines = BufReader::new(reply.body).lines();
        Ok(lines.filter_map(|line| match line {
            Ok(line) => line.strip_prefix("data:").map(|data| Ok(serde_json::from_str(data.trim_start())?)),
            Err(error) => Some(Err(error)),
        }))
    }

    fn send(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Box<dyn Stream>, Error> {
        let mut stream = self.connect()?;
        let (host, of_token) = match &self.at {
            At::Socket(_) => ("partitad", String::new()),
            At::Network { authority, token } => {
                (authority.as_str(), format!("authorization: Bearer {token}\r\n"))
            }
        };
        let body = body.map(Value::to_string).unwrap_or_default();
        let of_body = match body.is_empty() {
            true => String::new(),
            false => format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len()),
        };
        // A path with a space or a line break would start a second request.
        if !path.starts_with('/') || !path.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(self.failed(format!("{path:?} is not a path; percent-encode names")));
        }
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{of_token}{of_body}\r\n{body}"
        );
        stream.write_all(request.as_bytes()).map_err(|error| self.failed(error.to_string()))?;
        Ok(stream)
    }

    fn connect(&self) -> Result<Box<dyn Stream>, Error> {
        match &self.at {
            At::Socket(socket) => Ok(Box::new(self.connect_to(socket)?)),
            At::Network { authority, .. } => {
                let failed = |error: io::Error| self.failed(error.to_string());
                let mut addresses = authority.to_socket_addrs().map_err(failed)?;
                // The first that answers, or why the last one does not.
                let mut stream = Err(io::ErrorKind::AddrNotAvailable.into());
                while let (Err(_), Some(address)) = (&stream, addresses.next()) {
                    stream = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT);
                }
                let stream = stream.map_err(failed)?;
                let timeout = Some(ANSWER_TIMEOUT);
                stream
                    .set_read_timeout(timeout)
                    .and_then(|()| stream.set_write_timeout(timeout))
                    .map_err(failed)?;
                Ok(Box::new(stream))
            }
        }
    }

    fn connect_to(&self, socket: &Path) -> Result<UnixStream, Error> {
        let failed = |error: io::Error| {
            let remedy = "start it with `partitad`, or leave PARTITAD_SOCKET unset";
            self.failed(format!("{error}; {remedy}"))
        };
        let stream = UnixStream::connect(socket).map_err(failed)?;
        let peer = socket_peercred(&stream).map_err(|code| failed(code.into()))?;
        let own = rustix::process::geteuid();
        if !peer.uid.is_root() && peer.uid != own {
            return Err(self.failed(format!(
                "user {} listens there, who is neither root nor you; remove the socket, or start your \
                 own daemon on another one and name it in {SOCKET_VARIABLE}",
                peer.uid.as_raw()
            )));
        }
        stream
            .set_read_timeout(Some(ANSWER_TIMEOUT))
            .and_then(|()| stream.set_write_timeout(Some(ANSWER_TIMEOUT)))
            .map_err(failed)?;
        Ok(stream)
    }

    fn failed(&self, reason: String) -> Error {
        let socket = match &self.at {
            At::Socket(socket) => socket.clone(),
            At::Network { authority, .. } => format!("http://{authority}").into(),
        };
        Error::Daemon { socket, reason }
    }
}

/// A connection of either kind.
trait Stream: Read + Write {}

impl<T: Read + Write> Stream for T {}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the answer is not HTTP: {what}"))
}

/// An answer whose body is not yet read.
struct Reply {
    status: u16,
    body: Box<dyn Read>,
}

impl Reply {
    fn read(stream: impl Read + 'static) -> io::Result<Self> {
        let mut stream = BufReader::new(stream);
        let mut line = || -> io::Result<String> {
            let mut line = String::new();
            (&mut stream).take(LINE_BYTES_MAX).read_line(&mut line)?;
            match line.strip_suffix("\r\n") {
                Some(line) => Ok(line.to_owned()),
                None => Err(malformed("a line does not end")),
            }
        };
        let first = line()?;
        let status = first.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
        let status = status.ok_or_else(|| malformed(&first))?;
        let (mut length, mut chunked) = (None, false);
        loop {
            let header = line()?;
            let Some((name, value)) = header.split_once(':') else {
                if header.is_empty() {
                    break;
                }
                return Err(malformed(&header));
            };
            match name.to_ascii_lowercase().as_str() {
                "content-length" => length = value.trim().parse::<u64>().ok(),
                "transfer-encoding" => chunked = value.trim().eq_ignore_ascii_case("chunked"),
                _ => {}
            }
        }
        let body: Box<dyn Read> = match (chunked, length) {
            (true, _) => Box::new(Chunks { stream, left: 0, first: true }),
            (false, Some(length)) => Box::new(stream.take(length)),
            // The daemon closes the connection after the body.
            (false, None) => Box::new(stream),
        };
        Ok(Self { status, body })
    }

    fn json(self) -> io::Result<Answer> {
        let mut bytes = Vec::new();
        self.body.take(ANSWER_BYTES_MAX).read_to_end(&mut bytes)?;
        let body = if bytes.is_empty() { Value::Null } else { serde_json::from_slice(&bytes)? };
        Ok(Answer { status: self.status, body })
    }
}

/// A body in chunks (RFC 9112, 7.1).
struct Chunks<R> {
    stream: BufReader<R>,
    /// Unread bytes of the current chunk.
    left: u64,
    first: bool,
}

impl<R: Read> Read for Chunks<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            let mut line = String::new();
            if !self.first {
                (&mut self.stream).take(2).read_line(&mut line)?;
                line.clear();
            }
            (&mut self.stream).take(LINE_BYTES_MAX).read_line(&mut line)?;
            let size = line.trim_end().split(';').next().unwrap_or_default();
            // Only the last chunk, of size 0, ends the body.
            self.left = u64::from_str_radix(size, 16).map_err(|_| malformed("a chunk has no valid size"))?;
            self.first = false;
            if self.left == 0 {
                // Only trailers follow, which are ignored.
                self.first = true;
                return Ok(0);
            }
        }
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let read = self.stream.read(&mut buffer[..most])?;
        self.left -= read as u64;
        match (read, most) {
            (0, 1..) => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(read),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use serde_json::json;

    use super::*;

    fn answer(text: &str) -> io::Result<Answer> {
        Reply::read(Cursor::new(text.as_bytes().to_vec()))?.json()
    }

    #[test]
    fn answers_are_read_in_each_of_their_forms() {
        let head = "HTTP/1.1 201 Created\r\nX: y\r\n";
        let body = json!({ "a": 1 });
        for text in [
            format!("{head}Content-Length: 7\r\n\r\n{{\"a\":1}}and more"),
            format!("{head}Transfer-Encoding: chunked\r\n\r\n2\r\n{{\"\r\n5;x=y\r\na\":1}}\r\n0\r\n\r\n"),
            format!("{head}\r\n{{\"a\":1}}"),
        ] {
            assert_eq!(answer(&text).unwrap(), Answer { status: 201, body: body.clone() }, "{text}");
        }
        assert_eq!(answer("HTTP/1.1 204 No Content\r\n\r\n").unwrap().body, Value::Null);
    }

    #[test]
    fn truncated_or_malformed_answers_are_errors() {
        for text in [
            "",
            "HTTP/1.1 200 OK",
            "SSH-2.0\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{\"a\"",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n7\r\n{\"a\":1}\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nz\r\n{\"a\":1}\r\n",
            "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        ] {
            assert!(answer(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_missing_daemon_is_reported_with_the_remedy() {
        let client = Client::at(Path::new("/nowhere/partitad.sock"));
        let error = client.get("/healthz").unwrap_err().to_string();
        assert!(
            error.contains("/nowhere/partitad.sock") && error.contains("start it with `partitad`"),
            "{error}"
        );
    }
}
