//! The network between two chains of one application: the last component of one sends its results
//! to the first component of the next, over TCP.
//!
//! A record is the frame's note, in little-endian words, and its content. Both chains have frames
//! of one size. The receiver reads a record when it has a free frame, so a slow chain slows the
//! one before.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use partita_chain::{Error, Frame};

/// How long the sender waits for a receiver to begin.
const CONNECT_LIMIT: Duration = Duration::from_secs(30);

fn with_address(address: &str) -> impl Fn(io::Error) -> String {
    move |error| format!("{address}: {error}")
}

/// The sending end.
pub struct Sender {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Sender {
    pub fn connect(address: &str) -> Result<Self, String> {
        let begin = Instant::now();
        loop {
            match TcpStream::connect(address) {
                Ok(stream) => {
                    stream.set_nodelay(true).map_err(with_address(address))?;
                    return Ok(Self { stream, buffer: Vec::new() });
                }
                Err(error) if begin.elapsed() > CONNECT_LIMIT => return Err(with_address(address)(error)),
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    /// Waits for the GPU, and sends the frame.
    pub fn send(&mut self, frame: &Frame<'_, '_>) -> Result<io::Result<()>, Error> {
        let note = frame.meta().len() * 8;
        self.buffer.resize(note + frame.bytes() as usize, 0);
        for (bytes, word) in self.buffer.chunks_exact_mut(8).zip(frame.meta()) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        frame.read(0, &mut self.buffer[note..])?;
        Ok(self.stream.write_all(&self.buffer))
    }
}

/// The receiving end.
pub struct Receiver {
    listener: TcpListener,
    stream: Option<TcpStream>,
    buffer: Vec<u8>,
}

impl Receiver {
    pub fn listen(address: &str) -> Result<Self, String> {
        let listener = TcpListener::bind(address).map_err(with_address(address))?;
        Ok(Self { listener, stream: None, buffer: Vec::new() })
    }

    /// Fills a frame with the next record. Returns false at the end of the connection.
    pub fn receive(&mut self, frame: &mut Frame<'_, '_>) -> Result<io::Result<bool>, Error> {
        let note = frame.meta().len() * 8;
        self.buffer.resize(note + frame.bytes() as usize, 0);
        match self.read() {
            Ok(true) => {}
            other => return Ok(other),
        }
        for (word, bytes) in frame.meta_mut().iter_mut().zip(self.buffer.chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
        }
        frame.write(&self.buffer[note..])?;
        Ok(Ok(true))
    }

    fn read(&mut self) -> io::Result<bool> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            none => none.insert(self.listener.accept()?.0),
        };
        match stream.read(&mut self.buffer[..1])? {
            0 => Ok(false),
            _ => stream.read_exact(&mut self.buffer[1..]).map(|()| true),
        }
    }
}
