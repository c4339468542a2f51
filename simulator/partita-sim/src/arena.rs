//! Storage with handles that become stale.

/// Values under handles of index and generation: a handle whose value was removed never finds
/// another one.
#[derive(Clone, Debug)]
pub(crate) struct Arena<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

#[derive(Clone, Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Default for Arena<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Arena<T> {
    /// Stores a value.
    pub(crate) fn insert(&mut self, value: T) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, value: None });
            u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 values at once")
        });
        let slot = &mut self.slots[index as usize];
        slot.value = Some(value);
        u64::from(slot.generation) << 32 | u64::from(index)
    }

    /// Removes a value.
    pub(crate) fn remove(&mut self, handle: u64) -> Option<T> {
        let slot = self.slots.get_mut(handle as u32 as usize)?;
        if u64::from(slot.generation) != handle >> 32 {
            return None;
        }
        let value = slot.value.take()?;
        // A slot whose generations are used up stays empty, so that no old handle becomes valid.
        if slot.generation < u32::MAX {
            slot.generation += 1;
            self.free.push(handle as u32);
        }
        Some(value)
    }

    /// The value of a handle, if any.
    #[inline]
    pub(crate) fn get(&self, handle: u64) -> Option<&T> {
        let slot = self.slots.get(handle as u32 as usize)?;
        if u64::from(slot.generation) == handle >> 32 { slot.value.as_ref() } else { None }
    }

    /// The mutable value of a handle, if any.
    #[inline]
    pub(crate) fn get_mut(&mut self, handle: u64) -> Option<&mut T> {
        let slot = self.slots.get_mut(handle as u32 as usize)?;
        if u64::from(slot.generation) == handle >> 32 { slot.value.as_mut() } else { None }
    }

    /// All values with their handles, by index.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.slots.iter().enumerate().filter_map(|(index, slot)| {
            let value = slot.value.as_ref()?;
            Some((u64::from(slot.generation) << 32 | index as u64, value))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_handle_finds_nothing() {
        let mut arena = Arena::default();
        let a = arena.insert('a');
        let b = arena.insert('b');
        assert_eq!(arena.remove(a), Some('a'));
        assert_eq!(arena.remove(a), None);
        let c = arena.insert('c');
        assert_eq!(c as u32, a as u32, "the place is used again");
        assert_ne!(c, a);
        assert_eq!((arena.get(a), arena.get(b), arena.get(c)), (None, Some(&'b'), Some(&'c')));
        assert_eq!(arena.get_mut(a), None);
        assert_eq!(arena.iter().map(|(handle, _)| handle).collect::<Vec<_>>(), [c, b]);
        assert_eq!(arena.get(99), None);
    }
}
