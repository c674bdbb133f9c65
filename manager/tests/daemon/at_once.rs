//! What a kill leaves behind, and the next start removes.

use std::fs;

use crate::node::{GIB, Node, part};

#[test]
fn a_specification_that_was_half_written_at_a_kill_is_removed() {
    let mut node = Node::start();
    let ready = node.create("a", vec![part(1, GIB)]).unwrap();
    let half = node.cdi_file("a").with_file_name(".aliquot.dev-slice-a.new");
    for phase in ["ready", "making"] {
        node.stop();
        fs::write(&half, "{").unwrap();
        let text = fs::read_to_string(node.checkpoint()).unwrap();
        fs::write(node.checkpoint(), text.replace("\"ready\"", &format!("\"{phase}\""))).unwrap();
        node.restart().unwrap();
        assert!(!half.exists(), "{phase}");
        assert_eq!(node.list(), if phase == "ready" { vec![ready.clone()] } else { vec![] });
    }
}
