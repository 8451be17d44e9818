//! A Merkle Patricia trie. It has the bytes of Ethereum's, except for the hash function, which is
//! the store's.
//!
//! Nodes are RLP; a node shorter than a hash is embedded in its parent. Keys are used unhashed,
//! four bits a step. Ethereum's keys all have one length; here one key may be a prefix of another,
//! so branches have values. A batch changes an unhashed copy of the nodes that it touches, which is
//! hashed once at the end.

mod rlp;

use coppice_types::Digest;

use crate::{
    Error, Result,
    store::{Nodes, Store},
    structure::{Change, Item, Link, Part, Structure},
};
use rlp::Field;

/// RLP of the empty byte string: the empty trie.
const EMPTY: &[u8] = &[0x80];
const WIDTH: usize = 16;

#[derive(Clone, Copy, Debug, Default)]
pub struct PatriciaTrie;

/// A part of a trie in memory.
enum Trie {
    Empty,
    /// A stored part that has not been read.
    Stored(Link),
    Leaf {
        path: Vec<u8>,
        value: Vec<u8>,
    },
    Extension {
        path: Vec<u8>,
        child: Box<Trie>,
    },
    Branch {
        children: Box<[Trie; WIDTH]>,
        value: Option<Vec<u8>>,
    },
}

/// The parsed bytes of a node.
enum Node<'n> {
    Empty,
    Leaf { path: Vec<u8>, value: &'n [u8] },
    Extension { path: Vec<u8>, child: Field<'n> },
    Branch { children: Vec<Field<'n>>, value: &'n [u8] },
}

impl Structure for PatriciaTrie {
    fn name(&self) -> &'static str {
        "Merkle Patricia trie"
    }

    fn is_canonical(&self) -> bool {
        true
    }

    fn empty(&self, store: &mut Store) -> Digest {
        store.put(EMPTY.to_vec())
    }

    fn get(&self, nodes: &dyn Nodes, root: &Digest, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let nibbles = nibbles(key);
        let mut rest = &nibbles[..];
        let mut node = parse(nodes.node(root)?)?;
        loop {
            let next = match node {
                Node::Empty => return Ok(None),
                Node::Leaf { path, value } => return Ok((path == rest).then(|| value.to_vec())),
                Node::Extension { path, child } => match rest.strip_prefix(&path[..]) {
                    Some(after) => {
                        rest = after;
                        child
                    }
                    None => return Ok(None),
                },
                Node::Branch { children, value } => match rest.split_first() {
                    Some((nibble, after)) => {
                        rest = after;
                        children[usize::from(*nibble)]
                    }
                    None => return Ok((!value.is_empty()).then(|| value.to_vec())),
                },
            };
            node = match next {
                Field::List(raw) => parse(raw)?,
                Field::Text(&[]) => return Ok(None),
                Field::Text(name) => parse(nodes.node(&digest(name)?)?)?,
            };
        }
    }

    fn apply(&self, store: &mut Store, root: &Digest, changes: &[Change]) -> Result<Digest> {
        let mut trie = load(store, &Link::Name(*root))?;
        for change in changes {
            let path = nibbles(&change.key);
            trie = match &change.payload {
                Some(value) => insert(store, trie, &path, value)?,
                None => remove(store, trie, &path)?,
            };
        }
        match seal(store, trie) {
            None => Ok(self.empty(store)),
            Some(Link::Name(name)) => Ok(name),
            Some(Link::Within(node)) => Ok(store.put(node)),
        }
    }

    fn expand(&self, place: &[u8], node: &[u8]) -> Result<Vec<Item>> {
        let below = |path: &[u8]| [place, path].concat();
        let record = |place: Vec<u8>, value: &[u8]| {
            let part = Part::Record { key: key_of(&place)?, payload: value.to_vec() };
            Ok(Item { place, part })
        };
        let child =
            |place: Vec<u8>, field: Field<'_>| Ok(link(field)?.map(|link| Item { place, part: Part::Node(link) }));
        match parse(node)? {
            Node::Empty => Ok(Vec::new()),
            Node::Leaf { path, value } => Ok(vec![record(below(&path), value)?]),
            Node::Extension { path, child: field } => Ok(child(below(&path), field)?.into_iter().collect()),
            Node::Branch { children, value } => {
                let mut items = Vec::new();
                if !value.is_empty() {
                    items.push(record(place.to_vec(), value)?);
                }
                for (nibble, field) in (0..).zip(children) {
                    items.extend(child(below(&[nibble]), field)?);
                }
                Ok(items)
            }
        }
    }

    fn level(&self, _: &[u8]) -> u8 {
        0
    }
}

fn nibbles(key: &[u8]) -> Vec<u8> {
    key.iter().flat_map(|byte| [byte >> 4, byte & 15]).collect()
}

fn key_of(nibbles: &[u8]) -> Result<Vec<u8>> {
    if !nibbles.len().is_multiple_of(2) {
        return Err(Error::Malformed("half a byte"));
    }
    Ok(nibbles.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

fn digest(name: &[u8]) -> Result<Digest> {
    Digest::from_slice(name).ok_or(Error::Malformed("name"))
}

fn link(field: Field<'_>) -> Result<Option<Link>> {
    Ok(match field {
        Field::List(raw) => Some(Link::Within(raw.to_vec())),
        Field::Text(&[]) => None,
        Field::Text(name) => Some(Link::Name(digest(name)?)),
    })
}

/// Ethereum's hex-prefix encoding of a path. The first half byte has the kind and whether the
/// length is odd; before an even path there is another half byte, which is zero.
fn compact(path: &[u8], leaf: bool) -> Vec<u8> {
    let flag = if leaf { 2 } else { 0 };
    let odd = path.len() % 2;
    let head = if odd == 1 { (flag + 1) << 4 | path[0] } else { flag << 4 };
    [head].into_iter().chain(path[odd..].chunks(2).map(|pair| pair[0] << 4 | pair[1])).collect()
}

fn parse(node: &[u8]) -> Result<Node<'_>> {
    let malformed = || Error::Malformed("node of the trie");
    if node == EMPTY {
        return Ok(Node::Empty);
    }
    let fields = rlp::list(node).ok_or_else(malformed)?;
    match fields[..] {
        [Field::Text(compact), second] => {
            let all = nibbles(compact);
            let kind = *all.first().ok_or_else(malformed)?;
            if kind > 3 || (kind % 2 == 0 && all[1] != 0) {
                return Err(malformed());
            }
            let path = all[if kind % 2 == 1 { 1 } else { 2 }..].to_vec();
            match second {
                Field::Text(value) if kind >= 2 => Ok(Node::Leaf { path, value }),
                child if kind < 2 && !path.is_empty() => Ok(Node::Extension { path, child }),
                _ => Err(malformed()),
            }
        }
        [ref children @ .., Field::Text(value)] if children.len() == WIDTH => {
            Ok(Node::Branch { children: children.to_vec(), value })
        }
        _ => Err(malformed()),
    }
}

/// Loads a node from the store; its children stay unread.
fn load(store: &Store, at: &Link) -> Result<Trie> {
    let bytes = match at {
        Link::Name(name) => store.node(name)?,
        Link::Within(bytes) => bytes,
    };
    let stored = |field| Ok(link(field)?.map_or(Trie::Empty, Trie::Stored));
    Ok(match parse(bytes)? {
        Node::Empty => Trie::Empty,
        Node::Leaf { path, value } => Trie::Leaf { path, value: value.to_vec() },
        Node::Extension { path, child } => Trie::Extension { path, child: Box::new(stored(child)?) },
        Node::Branch { children, value } => {
            let mut loaded = no_children();
            for (slot, field) in loaded.iter_mut().zip(children) {
                *slot = stored(field)?;
            }
            Trie::Branch { children: loaded, value: (!value.is_empty()).then(|| value.to_vec()) }
        }
    })
}

fn no_children() -> Box<[Trie; WIDTH]> {
    Box::new([const { Trie::Empty }; WIDTH])
}

fn shared(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

fn insert(store: &Store, trie: Trie, path: &[u8], value: &[u8]) -> Result<Trie> {
    Ok(match trie {
        Trie::Empty => Trie::Leaf { path: path.to_vec(), value: value.to_vec() },
        Trie::Stored(at) => insert(store, load(store, &at)?, path, value)?,
        Trie::Leaf { path: old, .. } if old == path => Trie::Leaf { path: old, value: value.to_vec() },
        Trie::Leaf { path: old, value: old_value } => {
            let common = shared(&old, path);
            let mut branch = Trie::Branch { children: no_children(), value: None };
            branch = insert(store, branch, &old[common..], &old_value)?;
            branch = insert(store, branch, &path[common..], value)?;
            extend(&path[..common], branch)
        }
        Trie::Extension { path: old, child } => {
            let common = shared(&old, path);
            if common == old.len() {
                Trie::Extension { path: old, child: Box::new(insert(store, *child, &path[common..], value)?) }
            } else {
                let mut children = no_children();
                children[usize::from(old[common])] = extend(&old[common + 1..], *child);
                let branch = Trie::Branch { children, value: None };
                extend(&path[..common], insert(store, branch, &path[common..], value)?)
            }
        }
        Trie::Branch { mut children, value: own } => match path.split_first() {
            None => Trie::Branch { children, value: Some(value.to_vec()) },
            Some((nibble, rest)) => {
                let slot = &mut children[usize::from(*nibble)];
                *slot = insert(store, std::mem::replace(slot, Trie::Empty), rest, value)?;
                Trie::Branch { children, value: own }
            }
        },
    })
}

/// A branch, or its replacement, below a path.
fn extend(path: &[u8], child: Trie) -> Trie {
    if path.is_empty() { child } else { Trie::Extension { path: path.to_vec(), child: Box::new(child) } }
}

fn remove(store: &Store, trie: Trie, path: &[u8]) -> Result<Trie> {
    Ok(match trie {
        Trie::Empty => Trie::Empty,
        Trie::Stored(at) => remove(store, load(store, &at)?, path)?,
        Trie::Leaf { path: old, .. } if old == path => Trie::Empty,
        leaf @ Trie::Leaf { .. } => leaf,
        Trie::Extension { path: old, child } => match path.strip_prefix(&old[..]) {
            Some(rest) => join(store, old, remove(store, *child, rest)?)?,
            None => Trie::Extension { path: old, child },
        },
        Trie::Branch { mut children, mut value } => {
            match path.split_first() {
                None => value = None,
                Some((nibble, rest)) => {
                    let slot = &mut children[usize::from(*nibble)];
                    *slot = remove(store, std::mem::replace(slot, Trie::Empty), rest)?;
                }
            }
            shrink(store, children, value)?
        }
    })
}

/// Simplifies a branch that may have only one child left, or none.
fn shrink(store: &Store, mut children: Box<[Trie; WIDTH]>, value: Option<Vec<u8>>) -> Result<Trie> {
    let mut used = (0..WIDTH).filter(|at| !matches!(children[*at], Trie::Empty));
    match (used.next(), used.next(), value) {
        (None, _, None) => Ok(Trie::Empty),
        (None, _, Some(value)) => Ok(Trie::Leaf { path: Vec::new(), value }),
        (Some(only), None, None) => {
            let child = std::mem::replace(&mut children[only], Trie::Empty);
            join(store, vec![only as u8], child)
        }
        (_, _, value) => Ok(Trie::Branch { children, value }),
    }
}

/// Puts a path before a child, and merges the two into one node where possible.
fn join(store: &Store, mut path: Vec<u8>, child: Trie) -> Result<Trie> {
    Ok(match child {
        Trie::Empty => Trie::Empty,
        Trie::Stored(at) => match load(store, &at)? {
            // The branch does not change, so it stays as it is stored.
            Trie::Branch { .. } => Trie::Extension { path, child: Box::new(Trie::Stored(at)) },
            loaded => join(store, path, loaded)?,
        },
        Trie::Leaf { path: rest, value } => {
            path.extend(rest);
            Trie::Leaf { path, value }
        }
        Trie::Extension { path: rest, child } => {
            path.extend(rest);
            Trie::Extension { path, child }
        }
        branch @ Trie::Branch { .. } => Trie::Extension { path, child: Box::new(branch) },
    })
}

/// Encodes and stores new parts; `None` for an empty part.
fn seal(store: &mut Store, trie: Trie) -> Option<Link> {
    let mut fields = Vec::new();
    match trie {
        Trie::Empty => return None,
        Trie::Stored(at) => return Some(at),
        Trie::Leaf { path, value } => {
            rlp::text(&mut fields, &compact(&path, true));
            rlp::text(&mut fields, &value);
        }
        Trie::Extension { path, child } => {
            rlp::text(&mut fields, &compact(&path, false));
            reference(&mut fields, seal(store, *child));
        }
        Trie::Branch { children, value } => {
            for child in *children {
                reference(&mut fields, seal(store, child));
            }
            rlp::text(&mut fields, &value.unwrap_or_default());
        }
    }
    let node = rlp::enclose(&fields);
    Some(if node.len() < 32 { Link::Within(node) } else { Link::Name(store.put(node)) })
}

fn reference(out: &mut Vec<u8>, child: Option<Link>) {
    match child {
        None => rlp::text(out, &[]),
        Some(Link::Name(name)) => rlp::text(out, &name.0),
        Some(Link::Within(node)) => out.extend(node),
    }
}
