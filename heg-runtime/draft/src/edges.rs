//! The edges of an automaton's states, in 8 bytes a state and 8 bytes for each further edge.
//!
//! Most states have one edge, which stands in the state itself. The edges of the others stand in blocks of one pool: a
//! block of n places has n tokens, then n targets, so that looking for a token reads consecutive memory.

/// Tokens from here on cannot be labels: the highest bit tells how an [`EdgeSet`] is to be read.
pub(crate) const TOKEN_LIMIT: u32 = 1 << 31;

/// Marks a set without edges.
const NONE: u32 = u32::MAX;

/// The edges of one state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EdgeSet {
    /// The token of the only edge; or [`TOKEN_LIMIT`] and the number of edges; or [`NONE`].
    label: u32,
    /// The target of the only edge; or where the block of edges begins.
    place: u32,
}

impl EdgeSet {
    pub(crate) const EMPTY: Self = Self {
        label: NONE,
        place: 0,
    };

    /// Where the block of a state with several edges is.
    fn block(self) -> Option<Block> {
        (self.label != NONE && self.label >= TOKEN_LIMIT).then(|| Block {
            start: self.place as usize,
            edges: (self.label - TOKEN_LIMIT) as usize,
        })
    }
}

/// Consecutive edges in the pool.
#[derive(Clone, Copy)]
struct Block {
    start: usize,
    edges: usize,
}

impl Block {
    /// Places that a block with so many edges has: the next power of two.
    fn places(self) -> usize {
        self.edges.next_power_of_two()
    }
}

/// The pool of all blocks of an automaton.
#[derive(Debug, Clone, Default)]
pub(crate) struct Edges {
    pool: Vec<u32>,
    /// Blocks that became too small, by the logarithm of their places.
    free: [Vec<u32>; 32],
}

impl Edges {
    /// The target of an edge.
    pub(crate) fn target(&self, set: EdgeSet, token: u32) -> Option<u32> {
        if set.label == token {
            return Some(set.place);
        }
        let block = set.block()?;
        let at = self.tokens(block).iter().position(|t| *t == token)?;
        self.targets(block).get(at).copied()
    }

    /// Number of edges.
    pub(crate) fn len(&self, set: EdgeSet) -> usize {
        match set.block() {
            Some(block) => block.edges,
            None => usize::from(set != EdgeSet::EMPTY),
        }
    }

    /// All edges, as token and target.
    pub(crate) fn iter(&self, set: EdgeSet) -> impl Iterator<Item = (u32, u32)> {
        let single = (set.label < TOKEN_LIMIT).then_some((set.label, set.place));
        let block = set.block().unwrap_or(Block { start: 0, edges: 0 });
        let (tokens, targets) = (self.tokens(block), self.targets(block));
        single
            .into_iter()
            .chain(tokens.iter().copied().zip(targets.iter().copied()))
    }

    /// Points an edge that is there at another target.
    pub(crate) fn redirect(&mut self, set: &mut EdgeSet, token: u32, target: u32) {
        if set.label == token {
            set.place = target;
            return;
        }
        let Some(block) = set.block() else { return };
        let at = self.tokens(block).iter().position(|t| *t == token);
        let place = at.map(|at| block.start + block.places() + at);
        if let Some(place) = place.and_then(|place| self.pool.get_mut(place)) {
            *place = target;
        }
    }

    /// Adds an edge whose token is not there yet and below [`TOKEN_LIMIT`].
    pub(crate) fn add(&mut self, set: &mut EdgeSet, token: u32, target: u32) {
        if *set == EdgeSet::EMPTY {
            *set = EdgeSet {
                label: token,
                place: target,
            };
            return;
        }
        let edges = self.len(*set);
        let is_full = set.block().is_none_or(|block| block.places() == edges);
        if is_full {
            self.grow(set, edges);
        }
        let block = Block {
            start: set.place as usize,
            edges: edges + 1,
        };
        for (at, value) in [(edges, token), (block.places() + edges, target)] {
            if let Some(place) = self.pool.get_mut(block.start + at) {
                *place = value;
            }
        }
        set.label = TOKEN_LIMIT + block.edges as u32;
    }

    /// A copy of a set, for another state.
    pub(crate) fn copy(&mut self, set: EdgeSet) -> EdgeSet {
        let Some(block) = set.block() else {
            return set;
        };
        let start = self.allocate(block.places());
        let from = block.start..block.start + 2 * block.places();
        self.pool.copy_within(from, start as usize);
        EdgeSet {
            place: start,
            ..set
        }
    }

    /// Gives back memory that nothing is in.
    pub(crate) fn shrink(&mut self) {
        self.pool.shrink_to_fit();
        self.free = Default::default();
    }

    pub(crate) fn bytes(&self) -> usize {
        let free = self.free.iter().map(Vec::capacity).sum::<usize>();
        (self.pool.capacity() + free) * size_of::<u32>()
    }

    /// Moves a full set into a block with room for one edge more.
    fn grow(&mut self, set: &mut EdgeSet, edges: usize) {
        let places = (edges + 1).next_power_of_two();
        let old: Vec<(u32, u32)> = self.iter(*set).collect();
        let start = self.allocate(places);
        for (at, (token, target)) in old.iter().enumerate() {
            let at = start as usize + at;
            if let Some([t, .., g]) = self.pool.get_mut(at..=at + places) {
                (*t, *g) = (*token, *target);
            }
        }
        if let Some(block) = set.block() {
            self.release(block);
        }
        *set = EdgeSet {
            label: TOKEN_LIMIT + edges as u32,
            place: start,
        };
    }

    fn allocate(&mut self, places: usize) -> u32 {
        if let Some(start) = self.free[places.ilog2() as usize % 32].pop() {
            return start;
        }
        let start = self.pool.len();
        if self.pool.capacity() < start + 2 * places {
            self.pool.reserve_exact(2 * places + start / 8);
        }
        self.pool.resize(start + 2 * places, 0);
        start as u32
    }

    fn release(&mut self, block: Block) {
        self.free[block.places().ilog2() as usize % 32].push(block.start as u32);
    }

    fn tokens(&self, block: Block) -> &[u32] {
        let tokens = self.pool.get(block.start..block.start + block.edges);
        tokens.unwrap_or_default()
    }

    fn targets(&self, block: Block) -> &[u32] {
        let start = block.start + block.places();
        self.pool
            .get(start..start + block.edges)
            .unwrap_or_default()
    }
}
