//! Edges between an automaton's states: 8 bytes per state and 8 bytes per further edge.
//!
//! Most states have one edge, stored in the state itself. Several edges are a block in one pool: a block with room for
//! n edges has n tokens, then n targets, so that a search for a token reads consecutive memory. A state with more than
//! [`LISTED_MAX`] edges has a hash table: a prompt may put a new token behind the same one thousands of times.
//!
//! Automata that share a text read its edges from one pool and copy a block or table before changing it.

use std::collections::HashMap;
use std::sync::Arc;

/// Smallest number that cannot be a label: the highest bit marks how an [`EdgeSet`] is stored.
pub(crate) const TOKEN_LIMIT: u32 = 1 << 31;

/// Most edges of a state that are searched linearly. Chosen: 64 tokens are four cache lines.
pub(crate) const LISTED_MAX: usize = 64;

/// Label of an empty set.
const NONE: u32 = u32::MAX;

/// The edges of one state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EdgeSet {
    /// The token of the only edge; or [`TOKEN_LIMIT`] and the number of edges; or [`NONE`].
    label: u32,
    /// The target of the only edge; or the start of the block in the pool; or the index of the table.
    place: u32,
}

impl EdgeSet {
    pub(crate) const EMPTY: Self = Self {
        label: NONE,
        place: 0,
    };

    #[inline]
    fn kind(self) -> Kind {
        match self.label {
            0..TOKEN_LIMIT => Kind::Single,
            NONE => Kind::Empty,
            label => match (label - TOKEN_LIMIT) as usize {
                edges @ 0..=LISTED_MAX => Kind::Block(Block {
                    start: self.place as usize,
                    edges,
                }),
                _ => Kind::Table(self.place as usize),
            },
        }
    }
}

/// Storage of a state's edges.
enum Kind {
    Empty,
    Single,
    Block(Block),
    /// Index of a table.
    Table(usize),
}

/// Consecutive edges in the pool.
#[derive(Clone, Copy)]
struct Block {
    start: usize,
    edges: usize,
}

impl Block {
    /// Capacity of the block in edges: the next power of two.
    fn places(self) -> usize {
        self.edges.next_power_of_two()
    }

    /// Range of its tokens and targets in the pool.
    fn range(self) -> std::ops::Range<usize> {
        self.start..self.start + 2 * self.places()
    }
}

type Table = HashMap<u32, u32>;

/// The edges of all states of an automaton.
#[derive(Debug, Clone, Default)]
pub(crate) struct Edges {
    /// Blocks and tables of the shared text.
    shared: Arc<Pool>,
    /// Blocks and tables of this automaton alone. Their indices continue the shared ones.
    own: Pool,
    /// Free blocks, by the logarithm of their capacity.
    free: [Vec<u32>; SIZES],
}

/// Number of block capacities: powers of two up to [`LISTED_MAX`].
const SIZES: usize = LISTED_MAX.ilog2() as usize + 1;

#[derive(Debug, Clone, Default)]
struct Pool {
    blocks: Vec<u32>,
    tables: Vec<Table>,
}

impl Pool {
    fn bytes(&self) -> usize {
        let tables = self.tables.iter().map(table_bytes).sum::<usize>();
        self.blocks.capacity() * size_of::<u32>()
            + self.tables.capacity() * size_of::<Table>()
            + tables
    }

    fn shrink(&mut self) {
        self.blocks.shrink_to_fit();
        self.tables.shrink_to_fit();
        self.tables.iter_mut().for_each(Table::shrink_to_fit);
    }
}

/// Bytes of a hash table: one control byte per slot, and one slot in eight empty.
pub(crate) fn table_bytes(table: &Table) -> usize {
    table.capacity() * (size_of::<(u32, u32)>() + 1) * 8 / 7
}

impl Edges {
    /// The target of an edge.
    #[inline]
    pub(crate) fn target(&self, set: EdgeSet, token: u32) -> Option<u32> {
        match set.kind() {
            Kind::Single if set.label == token => Some(set.place),
            Kind::Empty | Kind::Single => None,
            Kind::Block(block) => {
                let (tokens, targets) = self.listed(block);
                let at = tokens.iter().position(|t| *t == token)?;
                targets.get(at).copied()
            }
            Kind::Table(at) => self.table(at)?.get(&token).copied(),
        }
    }

    /// Number of edges.
    #[inline]
    pub(crate) fn len(&self, set: EdgeSet) -> usize {
        match set.kind() {
            Kind::Empty => 0,
            Kind::Single => 1,
            Kind::Block(_) | Kind::Table(_) => (set.label - TOKEN_LIMIT) as usize,
        }
    }

    /// All edges as token and target, in insertion order; nothing for sets of more than [`LISTED_MAX`] edges.
    #[inline]
    pub(crate) fn iter(&self, set: EdgeSet) -> impl Iterator<Item = (u32, u32)> {
        let single = (set.label < TOKEN_LIMIT).then_some((set.label, set.place));
        let (tokens, targets) = match set.kind() {
            Kind::Block(block) => self.listed(block),
            Kind::Empty | Kind::Single | Kind::Table(_) => Default::default(),
        };
        single
            .into_iter()
            .chain(tokens.iter().copied().zip(targets.iter().copied()))
    }

    /// Points an existing edge at another target.
    pub(crate) fn redirect(&mut self, set: &mut EdgeSet, token: u32, target: u32) {
        match set.kind() {
            Kind::Empty => {}
            Kind::Single => set.place = target,
            Kind::Block(block) => {
                let at = self.listed(block).0.iter().position(|t| *t == token);
                let block = self.own_block(set, block);
                if let Some(at) = at {
                    self.write(block.start + block.places() + at, target);
                }
            }
            Kind::Table(at) => {
                self.own_table(set, at).insert(token, target);
            }
        }
    }

    /// Adds an edge. Its token is new to the set and below [`TOKEN_LIMIT`].
    pub(crate) fn add(&mut self, set: &mut EdgeSet, token: u32, target: u32) {
        let edges = self.len(*set);
        match set.kind() {
            Kind::Empty => {
                *set = EdgeSet {
                    label: token,
                    place: target,
                };
                return;
            }
            Kind::Table(at) => {
                self.own_table(set, at).insert(token, target);
            }
            Kind::Single | Kind::Block(_) if edges == LISTED_MAX => {
                let mut table: Table = self.iter(*set).collect();
                table.insert(token, target);
                self.release(*set);
                set.place = self.add_table(table);
            }
            Kind::Single | Kind::Block(_) => {
                let block = self.with_room(set, edges + 1);
                self.write(block.start + edges, token);
                self.write(block.start + block.places() + edges, target);
            }
        }
        set.label = TOKEN_LIMIT + edges as u32 + 1;
    }

    /// A copy of a set, for another state.
    pub(crate) fn copy(&mut self, set: EdgeSet) -> EdgeSet {
        let place = match set.kind() {
            Kind::Empty | Kind::Single => set.place,
            Kind::Block(block) => self.copy_block(block),
            Kind::Table(at) => {
                let table = self.table(at).cloned();
                self.add_table(table.unwrap_or_default())
            }
        };
        EdgeSet { place, ..set }
    }

    /// Moves the edges into memory that clones share.
    pub(crate) fn share(&mut self) {
        self.shrink();
        self.shared = Arc::new(std::mem::take(&mut self.own));
    }

    /// Frees unused memory.
    pub(crate) fn shrink(&mut self) {
        self.own.shrink();
        self.free = Default::default();
    }

    /// Bytes of memory that only this automaton uses.
    pub(crate) fn own_bytes(&self) -> usize {
        let free = self.free.iter().map(Vec::capacity).sum::<usize>();
        self.own.bytes() + free * size_of::<u32>()
    }

    /// Bytes of memory that automata share.
    pub(crate) fn shared_bytes(&self) -> usize {
        self.shared.bytes()
    }

    /// A block of this automaton's own with the edges of `set` and room for `edges`.
    fn with_room(&mut self, set: &mut EdgeSet, edges: usize) -> Block {
        if let Kind::Block(block) = set.kind()
            && edges <= block.places()
        {
            let block = self.own_block(set, block);
            return Block { edges, ..block };
        }
        let start = self.allocate(edges.next_power_of_two());
        let block = Block { start, edges };
        let old: Vec<(u32, u32)> = self.iter(*set).collect();
        for (at, (token, target)) in old.into_iter().enumerate() {
            self.write(start + at, token);
            self.write(start + block.places() + at, target);
        }
        self.release(*set);
        set.place = start as u32;
        block
    }

    /// The block of a set, as this automaton's own: a shared one is copied first.
    fn own_block(&mut self, set: &mut EdgeSet, block: Block) -> Block {
        if block.start >= self.shared.blocks.len() {
            return block;
        }
        set.place = self.copy_block(block);
        Block {
            start: set.place as usize,
            ..block
        }
    }

    fn copy_block(&mut self, block: Block) -> u32 {
        let start = self.allocate(block.places());
        let first = self.shared.blocks.len();
        let to = start - first;
        match block.start.checked_sub(first) {
            Some(from) => self
                .own
                .blocks
                .copy_within(from..from + 2 * block.places(), to),
            None => {
                let from = self.shared.blocks.get(block.range());
                let to = self.own.blocks.get_mut(to..to + 2 * block.places());
                if let (Some(from), Some(to)) = (from, to) {
                    to.copy_from_slice(from);
                }
            }
        }
        start as u32
    }

    /// The table of a set, as this automaton's own: a shared one is copied first.
    fn own_table(&mut self, set: &mut EdgeSet, at: usize) -> &mut Table {
        let first = self.shared.tables.len();
        let own = match at.checked_sub(first) {
            Some(own) => own,
            None => {
                let table = self.table(at).cloned().unwrap_or_default();
                set.place = self.add_table(table);
                set.place as usize - first
            }
        };
        &mut self.own.tables[own]
    }

    fn add_table(&mut self, table: Table) -> u32 {
        self.own.tables.push(table);
        (self.shared.tables.len() + self.own.tables.len() - 1) as u32
    }

    fn table(&self, at: usize) -> Option<&Table> {
        match at.checked_sub(self.shared.tables.len()) {
            Some(own) => self.own.tables.get(own),
            None => self.shared.tables.get(at),
        }
    }

    fn allocate(&mut self, places: usize) -> usize {
        if let Some(start) = self.free[places.ilog2() as usize % SIZES].pop() {
            return start as usize;
        }
        let blocks = &mut self.own.blocks;
        let start = blocks.len();
        if blocks.capacity() < start + 2 * places {
            blocks.reserve_exact(2 * places + start / 8);
        }
        blocks.resize(start + 2 * places, 0);
        self.shared.blocks.len() + start
    }

    /// Frees the block of a set, unless it is shared.
    fn release(&mut self, set: EdgeSet) {
        if let Kind::Block(block) = set.kind()
            && block.start >= self.shared.blocks.len()
        {
            self.free[block.places().ilog2() as usize % SIZES].push(block.start as u32);
        }
    }

    /// Writes to the pool of this automaton.
    fn write(&mut self, place: usize, value: u32) {
        let own = place.checked_sub(self.shared.blocks.len());
        if let Some(place) = own.and_then(|own| self.own.blocks.get_mut(own)) {
            *place = value;
        }
    }

    /// Tokens and targets of a block.
    #[inline]
    fn listed(&self, block: Block) -> (&[u32], &[u32]) {
        let first = self.shared.blocks.len();
        let (blocks, start) = match block.start.checked_sub(first) {
            Some(own) => (&self.own.blocks, own),
            None => (&self.shared.blocks, block.start),
        };
        let places = block.places();
        let part = |from: usize| blocks.get(from..from + block.edges).unwrap_or_default();
        (part(start), part(start + places))
    }
}
