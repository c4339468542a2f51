//! A component's place in a chain whose messages go through sockets.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::system::system;
use crate::error::Error;

/// How long to wait for the others.
const MEET_MAX: Duration = Duration::from_secs(20);

/// The place of a component, and of its neighbours: a directory that belongs to the chain.
#[derive(Debug, Clone)]
pub struct Place {
    directory: PathBuf,
    /// The component's number, from 0.
    pub role: u8,
    /// How many there are.
    pub roles: u8,
}

impl Place {
    /// In that directory, which exists.
    pub fn new(directory: impl Into<PathBuf>, role: u8, roles: u8) -> Self {
        Self { directory: directory.into(), role, roles }
    }

    pub(crate) fn is_first(&self) -> bool {
        self.role == 0
    }

    pub(crate) fn is_last(&self) -> bool {
        self.role + 1 >= self.roles
    }

    fn port_file(&self, role: u8) -> PathBuf {
        self.directory.join(format!("port-{role}"))
    }

    pub(crate) fn socket_file(&self, role: u8) -> PathBuf {
        self.directory.join(format!("socket-{role}"))
    }

    /// A UDP socket on the loopback interface, at a place that the others know.
    pub(crate) fn bind_udp(&self) -> Result<UdpSocket, Error> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).map_err(system("a UDP socket"))?;
        let port = socket.local_addr().map_err(system("a UDP socket"))?.port();
        // Written as a whole: others read it at any time.
        let (draft, file) = (self.port_file(self.role).with_extension("new"), self.port_file(self.role));
        let written = std::fs::write(&draft, port.to_string()).and_then(|()| std::fs::rename(&draft, &file));
        written.map_err(system("a file in the chain's directory"))?;
        Ok(socket)
    }

    /// The address of another component's UDP socket, once it exists.
    pub(crate) fn udp_of(&self, role: u8) -> Result<SocketAddr, Error> {
        let file = self.port_file(role);
        meet(&file)?;
        let port = std::fs::read_to_string(&file).map_err(system("a file in the chain's directory"))?;
        let port: u16 = port.parse().map_err(|_| Error::Environment {
            variable: "the chain's directory",
            reason: format!("has {} without a port", file.display()),
        })?;
        Ok((Ipv4Addr::LOCALHOST, port).into())
    }
}

/// Waits until a file exists.
pub(crate) fn meet(file: &Path) -> Result<(), Error> {
    let began = Instant::now();
    while !file.exists() {
        if began.elapsed() > MEET_MAX {
            return Err(Error::System {
                what: "waiting for another component of the chain",
                source: std::io::ErrorKind::TimedOut.into(),
            });
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
