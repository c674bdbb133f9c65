//! Steps that can be rolled back: all are done, or none.

use tracing::error;

type Undo<'a> = Box<dyn FnOnce() -> Result<(), String> + 'a>;

/// The steps done so far. If it is dropped before [`Rollback::commit`], it undoes them, the last one first.
#[derive(Default)]
pub(crate) struct Rollback<'a> {
    steps: Vec<(&'static str, Undo<'a>)>,
}

impl<'a> Rollback<'a> {
    /// Records that a step was done, and how to undo it.
    pub(crate) fn did<E: ToString>(&mut self, step: &'static str, undo: impl FnOnce() -> Result<(), E> + 'a) {
        self.steps.push((step, Box::new(move || undo().map_err(|error| error.to_string()))));
    }

    /// Declares all steps done, so that none is undone.
    pub(crate) fn commit(mut self) {
        self.steps.clear();
    }
}

impl Drop for Rollback<'_> {
    fn drop(&mut self) {
        while let Some((step, undo)) = self.steps.pop() {
            // The next start removes what stays, because the checkpoint says that the operation was begun.
            if let Err(reason) = undo() {
                error!(step, reason, "cannot undo a step");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::convert::Infallible;

    use super::*;

    #[test]
    fn steps_are_undone_in_reverse_order_unless_committed() {
        let undone = RefCell::new(Vec::new());
        let note = |number: u32| {
            let undone = &undone;
            move || {
                undone.borrow_mut().push(number);
                Ok::<_, Infallible>(())
            }
        };
        let mut rollback = Rollback::default();
        rollback.did("one", note(1));
        rollback.did("fails", || Err("on purpose"));
        rollback.did("two", note(2));
        drop(rollback);
        assert_eq!(*undone.borrow(), [2, 1]);
        let mut rollback = Rollback::default();
        rollback.did("three", note(3));
        rollback.commit();
        assert_eq!(*undone.borrow(), [2, 1]);
    }
}
