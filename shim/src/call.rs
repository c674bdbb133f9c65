//! Calls as values.

/// A call that is made when it is wanted.
///
/// `&dyn Fn` would do the same. But then the table of each of a hundred closures has entries for `FnOnce` and `FnMut`
/// too, with code and relocations that nothing uses: 7 KB.
pub(crate) trait Call<T> {
    fn make(&self) -> T;
}

impl<T, F: Fn() -> T> Call<T> for F {
    fn make(&self) -> T {
        self()
    }
}
