//! Contexts of clients, and the server's log entries about them.

use super::Daemon;
use crate::mps::peer::{Peer, PeerId, Role, Server};
use crate::shared::place::Place;

impl Daemon {
    /// A client made a context, or ended one.
    pub(in crate::mps) fn context(&mut self, id: PeerId, context: u32, alive: bool) {
        if !alive && let Some(place) = self.place_of(id) {
            // It may end it because of a fault, which comes first then.
            self.hear_fault(&place);
        }
        let Some(server) = self.server.as_ref().map(Server::pid) else { return };
        let Some(Peer { pid, role: Role::Client(member), .. }) = self.peers.get_mut(&id) else { return };
        let name = client_name(*pid, context);
        if alive && member.contexts.insert(context) {
            let device = format!("Device {} (uuid {}) is associated", member.place.spec.name, member.uuid);
            self.log.server(server, format_args!("Received new client request for {name}"));
            self.log.server(server, format_args!("Client {name} connected"));
            self.log.server(server, format_args!("Creating worker thread for client {name}"));
            let place = member.place.clone();
            self.log.server(server, device);
            self.log.server(server, format_args!("Status of client {name} is ACTIVE"));
            self.watch(&place, server);
        } else if !alive && member.contexts.remove(&context) {
            self.log_context_end(server, &name);
        }
    }

    fn place_of(&self, id: PeerId) -> Option<Place> {
        match &self.peers.get(&id)?.role {
            Role::Client(member) => Some(member.place.clone()),
            _ => None,
        }
    }

    /// The words of the real server, its own spelling included.
    pub(in crate::mps) fn log_context_end(&mut self, server: u32, name: &str) {
        let left: usize = self.members().map(|(_, _, member)| member.contexts.len()).sum();
        self.log.server(
            server,
            format_args!("Server failed to recevie command with status 806, assuming client {name} exit"),
        );
        self.log.server(
            server,
            format_args!("Client {name} exiting. Number of active client contexts is {left}."),
        );
    }
}

/// A client as the server names it.
pub(in crate::mps) fn client_name(pid: u32, context: u32) -> String {
    format!("{{PID: {pid}, Context ID: {context}}}")
}
