//! Objects of the resource manager: clients, and the objects of each.

use core::ffi::c_int;
use std::collections::BTreeMap;

/// Answers, by the names of `nvstatuscodes.h`.
pub mod status {
    /// The name is in use.
    pub const INSERT_DUPLICATE_NAME: u32 = 0x19;
    /// An address that is not mapped.
    pub const INVALID_ADDRESS: u32 = 0x1e;
    /// Also: parameters of another size than the driver's.
    pub const INVALID_ARGUMENT: u32 = partita_abi::control::NV_ERR_INVALID_ARGUMENT;
    /// The class is unavailable.
    pub const INVALID_CLASS: u32 = 0x22;
    /// No client of that name on that node.
    pub const INVALID_CLIENT: u32 = 0x23;
    /// An object that cannot have such a child.
    pub const INVALID_OBJECT_PARENT: u32 = 0x36;
    /// An unknown command.
    pub const NOT_SUPPORTED: u32 = 0x56;
    /// No object of that name.
    pub const OBJECT_NOT_FOUND: u32 = 0x57;
}

/// The first name that the driver chooses for a client by itself, as seen on an H200.
const CLIENT_NAMES: u32 = 0xc1d0_0000;

/// The kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Object {
    /// A client: the root of its objects.
    Client,
    /// A GPU.
    Device {
        /// Which.
        gpu: usize,
    },
    /// A GPU's part; there is one to each.
    Subdevice {
        /// Of which.
        gpu: usize,
    },
    /// Device memory.
    DeviceMemory {
        /// Of which.
        gpu: usize,
        /// How much.
        bytes: u64,
    },
    /// A channel group.
    ChannelGroup {
        /// On which.
        gpu: usize,
        /// Its slice, in microseconds; 0 before it was set.
        slice_us: u64,
    },
}

#[derive(Debug)]
struct Client {
    /// The node through which it was made: the only one that it is known to, and it goes with it.
    token: c_int,
    /// Parent and kind by name.
    objects: BTreeMap<u32, (u32, Object)>,
    /// The last name that was chosen for an object.
    named: u32,
}

/// A name that no object of a client has, behind the last one that was chosen: the youngest object
/// has the greatest name.
fn next_name(objects: &BTreeMap<u32, (u32, Object)>, named: &mut u32) -> u32 {
    loop {
        *named = named.wrapping_add(1);
        if *named != 0 && !objects.contains_key(named) {
            return *named;
        }
    }
}

/// All clients of a process.
#[derive(Debug, Default)]
pub struct Clients {
    clients: BTreeMap<u32, Client>,
    named: u32,
}

impl Clients {
    fn client(&mut self, token: c_int, client: u32) -> Result<&mut Client, u32> {
        let found = self.clients.get_mut(&client).filter(|client| client.token == token);
        found.ok_or(status::INVALID_CLIENT)
    }

    /// Makes a client, of that name unless it is 0.
    pub fn make_client(&mut self, token: c_int, name: u32) -> Result<u32, u32> {
        let name = if name == 0 {
            self.named += 1;
            CLIENT_NAMES + self.named
        } else {
            name
        };
        if self.clients.contains_key(&name) {
            return Err(status::INSERT_DUPLICATE_NAME);
        }
        let objects = BTreeMap::from([(name, (name, Object::Client))]);
        self.clients.insert(name, Client { token, objects, named: 0 });
        Ok(name)
    }

    /// Makes an object below another one.
    pub fn make_object(
        &mut self,
        token: c_int,
        client: u32,
        parent: u32,
        name: u32,
        object: Object,
    ) -> Result<u32, u32> {
        let Client { objects, named, .. } = self.client(token, client)?;
        match (objects.get(&parent), object) {
            (None, _) => return Err(status::OBJECT_NOT_FOUND),
            (Some((_, Object::Client)), Object::Device { .. })
            | (
                Some((_, Object::Device { .. })),
                Object::Subdevice { .. } | Object::ChannelGroup { .. } | Object::DeviceMemory { .. },
            ) => {}
            _ => return Err(status::INVALID_OBJECT_PARENT),
        }
        let name = if name == 0 { next_name(objects, named) } else { name };
        if objects.contains_key(&name) {
            return Err(status::INSERT_DUPLICATE_NAME);
        }
        objects.insert(name, (parent, object));
        Ok(name)
    }

    /// An object of a client.
    pub fn object(&mut self, token: c_int, client: u32, name: u32) -> Result<Object, u32> {
        let found = self.client(token, client)?.objects.get(&name);
        found.map(|(_, object)| *object).ok_or(status::OBJECT_NOT_FOUND)
    }

    /// Changes the kind of an object.
    pub fn change(&mut self, client: u32, name: u32, object: Object) {
        let known = self.clients.get_mut(&client).and_then(|client| client.objects.get_mut(&name));
        if let Some((_, known)) = known {
            *known = object;
        }
    }

    /// The slice of the channel group that was made last.
    pub fn youngest_slice_us(&self) -> Option<u64> {
        let objects = self.clients.values().flat_map(|client| client.objects.values());
        let mut slices = objects.filter_map(|(_, object)| match object {
            Object::ChannelGroup { slice_us, .. } => Some(*slice_us),
            _ => None,
        });
        slices.next_back()
    }

    /// Frees an object with all below it.
    pub fn free(&mut self, token: c_int, client: u32, name: u32) -> Result<(), u32> {
        let objects = &mut self.client(token, client)?.objects;
        if name == client {
            self.clients.remove(&client);
            return Ok(());
        }
        objects.remove(&name).ok_or(status::OBJECT_NOT_FOUND)?;
        loop {
            let orphan = objects.iter().find(|(_, (parent, _))| !objects.contains_key(parent));
            let Some(orphan) = orphan.map(|(name, _)| *name) else { return Ok(()) };
            objects.remove(&orphan);
        }
    }

    /// Frees the objects that were created through a node.
    pub fn close(&mut self, token: c_int) {
        self.clients.retain(|_, client| client.token != token);
    }
}
