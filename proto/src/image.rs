//! The check of `Image.reference` in the agents' contract.

/// Words before a colon that make podman read an image from somewhere else than a registry or its own store
/// (containers-transports(5)): with the rights of podman, which are root's, and with options that the words carry.
const TRANSPORTS: [&str; 11] = [
    "atomic",
    "containers-storage",
    "dir",
    "docker",
    "docker-archive",
    "docker-daemon",
    "oci",
    "oci-archive",
    "ostree",
    "sif",
    "tarball",
];
/// The greatest length. No registry accepts a longer name.
const BYTES_MAX: usize = 512;

/// Whether this is the name of an image in a registry or in podman's own store: `[HOST[:PORT]/]PATH[:TAG][@DIGEST]`.
#[must_use]
pub fn is_image_reference(text: &str) -> bool {
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/:@".contains(&byte);
    let transport = text.split_once(':').map(|(word, _)| word);
    text.len() <= BYTES_MAX
        && text.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric())
        && text.bytes().last().is_some_and(|last| last.is_ascii_alphanumeric())
        && text.bytes().all(is_of_name)
        && !text.contains("//")
        && !transport.is_some_and(|word| TRANSPORTS.contains(&word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_images_are_taken() {
        for name in [
            "debian",
            "debian:12",
            "docker.io/pytorch/pytorch:2.9-cuda13",
            "localhost:5000/team/trainer",
            "localhost/aliquot-test-1:2",
            "quay.io/x/y@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
        ] {
            assert!(is_image_reference(name), "{name}");
        }
    }

    #[test]
    fn what_is_read_from_elsewhere_is_refused() {
        for name in [
            "",
            "-debian",
            "--privileged",
            "a b",
            "containers-storage:[overlay@/home/a/s+/home/a/r:overlay.mount_program=/home/a/x]y",
            "containers-storage:y",
            "docker://debian",
            "docker:debian",
            "docker-archive:/home/b/x.tar",
            "docker-daemon:x:1",
            "oci:/home/b/x",
            "oci-archive:/home/b/x.tar",
            "dir:/home/b",
            "dir:home",
            "sif:/x",
            "/home/b/rootfs",
            "http://x/y",
            "debian/",
        ] {
            assert!(!is_image_reference(name), "{name}");
        }
        assert!(!is_image_reference(&"a".repeat(513)));
    }
}
