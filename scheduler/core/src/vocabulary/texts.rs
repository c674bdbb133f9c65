//! Texts by key, such as a node's labels, in as little memory as they need.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Texts by key, in the order of keys. A map has room for eleven texts even if it has only one; that room would be most
/// of the memory of a cluster of thousands of nodes. This type has no spare room, so changes are slow. Copies share
/// keys and texts.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Texts(Box<[(Arc<str>, Arc<str>)]>);

impl Texts {
    /// The text of a key; `None`: there is no such key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        let at = self.0.binary_search_by_key(&key, |(key, _)| key).ok()?;
        self.0.get(at).map(|(_, text)| &**text)
    }

    /// Whether there is a text with this key.
    #[must_use]
    pub fn contains_key(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Keys and texts, in the order of keys.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, text)| (&**key, &**text))
    }

    /// The same texts, with each key and text replaced by what `of` returns for it, which must be equal to it.
    pub(crate) fn map(&self, mut of: impl FnMut(&Arc<str>) -> Arc<str>) -> Self {
        Self(self.0.iter().map(|(key, text)| (of(key), of(text))).collect())
    }

    /// The same texts without the keys that have this text; and those keys.
    pub(crate) fn without(&self, text: &str) -> (Self, Box<[Arc<str>]>) {
        let (of_text, others): (Vec<_>, Vec<_>) = self.0.iter().cloned().partition(|(_, own)| **own == *text);
        (Self(others.into()), of_text.into_iter().map(|(key, _)| key).collect())
    }

    /// Sets the text of a key.
    pub fn insert(&mut self, key: String, text: String) {
        self.extend([(key, text)]);
    }
}

impl Extend<(String, String)> for Texts {
    fn extend<T: IntoIterator<Item = (String, String)>>(&mut self, texts: T) {
        let own = std::mem::take(self).0.into_iter();
        let new = texts.into_iter().map(|(key, text)| (key.into(), text.into()));
        // If a key comes several times, its last text counts.
        let all: BTreeMap<Arc<str>, Arc<str>> = own.chain(new).collect();
        self.0 = all.into_iter().collect();
    }
}

impl FromIterator<(String, String)> for Texts {
    fn from_iter<T: IntoIterator<Item = (String, String)>>(texts: T) -> Self {
        let mut all = Self::default();
        all.extend(texts);
        all
    }
}

impl From<BTreeMap<String, String>> for Texts {
    fn from(texts: BTreeMap<String, String>) -> Self {
        texts.into_iter().collect()
    }
}

impl<const N: usize> From<[(String, String); N]> for Texts {
    fn from(texts: [(String, String); N]) -> Self {
        texts.into_iter().collect()
    }
}

impl From<&Texts> for BTreeMap<String, String> {
    fn from(texts: &Texts) -> Self {
        texts.iter().map(|(key, text)| (key.to_owned(), text.to_owned())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_found_by_key_and_the_last_one_counts() {
        let pair = |key: &str, text: &str| (key.to_owned(), text.to_owned());
        let mut texts = Texts::from([pair("zone", "a"), pair("rack", "1"), pair("zone", "b")]);
        texts.insert("host".into(), "h".into());
        texts.insert("rack".into(), "2".into());
        assert_eq!(texts.iter().collect::<Vec<_>>(), [("host", "h"), ("rack", "2"), ("zone", "b")]);
        assert_eq!((texts.get("zone"), texts.get("row")), (Some("b"), None));
        assert_eq!(Texts::from(BTreeMap::from(&texts)), texts);
    }
}
