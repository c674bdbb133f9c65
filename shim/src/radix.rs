//! A table from 48-bit numbers to words, for the charges of addresses and handles.
//!
//! A tree of fixed depth whose nodes are never moved or freed. Look-up, insertion and removal are a few dependent
//! loads, whether the table has one entry or a million, and need no lock. A number outside the table's range is not
//! stored; the caller lets such an allocation pass.

use crate::arena::Arena;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// A table with `LEVELS` levels of `2^BITS` entries, for numbers that are multiples of `2^SHIFT`.
pub(crate) struct Radix<const SHIFT: u32, const BITS: u32, const LEVELS: u32> {
    root: AtomicPtr<Node>,
    arena: Arena,
}

/// A node: `2^BITS` entries, which are pointers to nodes in an inner node and words in a leaf.
type Node = AtomicU64;

impl<const SHIFT: u32, const BITS: u32, const LEVELS: u32> Radix<SHIFT, BITS, LEVELS> {
    const NODE_BYTES: usize = 8 << BITS;

    pub(crate) const fn new() -> Self {
        Radix { root: AtomicPtr::new(core::ptr::null_mut()), arena: Arena::new() }
    }

    /// The entry of `key`, created if it does not exist; `None` if `key` is out of range or the kernel has no memory.
    #[inline]
    pub(crate) fn entry(&self, key: u64) -> Option<&AtomicU64> {
        self.walk(key, |pointer| self.grow(pointer))
    }

    /// The entry of `key`, if it exists.
    #[inline]
    pub(crate) fn existing(&self, key: u64) -> Option<&AtomicU64> {
        self.walk(key, |_| core::ptr::null_mut())
    }

    #[inline]
    fn walk(&self, key: u64, missing: impl Fn(&AtomicPtr<Node>) -> *mut Node) -> Option<&AtomicU64> {
        let index = key >> SHIFT;
        if key & ((1 << SHIFT) - 1) != 0 || index >> (BITS * LEVELS) != 0 {
            return None;
        }
        let mut pointer = &self.root;
        let mut level = LEVELS;
        loop {
            let mut node = pointer.load(Ordering::Acquire);
            if node.is_null() {
                node = missing(pointer);
                if node.is_null() {
                    return None;
                }
            }
            level -= 1;
            let place = (index >> (BITS * level)) as usize & ((1 << BITS) - 1);
            // SAFETY: a node has 2^BITS entries and lives for ever.
            let entry = unsafe { &*node.add(place) };
            if level == 0 {
                return Some(entry);
            }
            pointer = as_pointer(entry);
        }
    }

    #[cold]
    fn grow(&self, pointer: &AtomicPtr<Node>) -> *mut Node {
        let fresh: *mut Node = self.arena.take(Self::NODE_BYTES).cast();
        if fresh.is_null() {
            return fresh;
        }
        // The node of a thread that comes second stays unused: a few kilobytes that were never touched.
        match pointer.compare_exchange(core::ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => fresh,
            Err(first) => first,
        }
    }

    /// Calls `visit` with the key and the entry of every word that is not zero.
    pub(crate) fn for_each(&self, visit: &mut dyn FnMut(u64, &AtomicU64)) {
        Self::visit_node(self.root.load(Ordering::Acquire), LEVELS, 0, visit);
    }

    fn visit_node(node: *mut Node, level: u32, prefix: u64, visit: &mut dyn FnMut(u64, &AtomicU64)) {
        if node.is_null() {
            return;
        }
        for place in 0..1_u64 << BITS {
            // SAFETY: a node has 2^BITS entries and lives for ever.
            let entry = unsafe { &*node.add(place as usize) };
            let number = prefix << BITS | place;
            if level == 1 {
                if entry.load(Ordering::Relaxed) != 0 {
                    visit(number << SHIFT, entry);
                }
            } else {
                Self::visit_node(as_pointer(entry).load(Ordering::Acquire), level - 1, number, visit);
            }
        }
    }
}

/// An entry of an inner node, as the pointer that it is.
fn as_pointer(entry: &AtomicU64) -> &AtomicPtr<Node> {
    const { assert!(size_of::<AtomicPtr<Node>>() == size_of::<AtomicU64>()) };
    // SAFETY: same size and alignment; the entries of inner nodes are used as pointers only.
    unsafe { &*core::ptr::from_ref(entry).cast() }
}
