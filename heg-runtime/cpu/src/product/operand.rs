//! Operands: rows rounded to integers for the integer products.

/// Columns per scale.
pub(super) const GROUP: usize = 32;

/// Quads of columns per group: four bytes are multiplied and summed at once.
pub(super) const QUADS: usize = GROUP / 4;

/// Columns per block, two groups: the digits of one row and block fill a cache line.
pub(super) const BLOCK: usize = 64;

/// Groups per block.
pub(super) const GROUPS: usize = BLOCK / GROUP;

/// Base of the digits of a 16-bit activation. A digit is thus never −128, which AVX2's `vpsignb` could not negate.
pub(super) const BASE: i32 = 255;

/// Largest digit.
const DIGIT_MAX: i32 = 127;

/// Bit width of rounded activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bits {
    /// 8 bits: one digit, −127 to 127.
    Eight,
    /// 16 bits: two digits of base 255, −32512 to 32512.
    Sixteen,
}

/// Element kind of the weights that an operand is multiplied with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WeightKind {
    /// 8-bit integers.
    Bytes,
    /// 4-bit integers: even columns in low halves of bytes, odd ones in high halves.
    Nibbles,
}

/// Form of an operand.
///
/// The operand has these arrays, one after another: digits `[block][row][digit][column]` as 8-bit integers, the most
/// significant digit first; scales `[block][row][group]` in f32; offsets `[block][row][group]` in i32; sums `[row]` in
/// f32. An offset is −128 times the sum of a group's integers, which undoes adding 128 to each weight. A row's sum is
/// that of its rounded elements, group after group. Columns behind the last are zeros; groups without any column of the
/// row have a scale of zero.
///
/// For nibbles, the even columns of a group come before the odd ones, as halves of bytes do, and the sums of groups,
/// `[block][row][group]` in f32, follow the sums of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rounded {
    /// Number of columns, at least one.
    pub(crate) width: usize,
    /// Bit width of the integers.
    pub(crate) bits: Bits,
    /// Element kind of the weights.
    pub(crate) weight_kind: WeightKind,
}

impl Rounded {
    /// Blocks per row.
    pub(super) const fn blocks(self) -> usize {
        self.width.div_ceil(BLOCK)
    }

    /// Digits per activation.
    pub(super) const fn digits(self) -> usize {
        match self.bits {
            Bits::Eight => 1,
            Bits::Sixteen => 2,
        }
    }

    /// Bytes of an operand with `rows` rows; at most four per element, counting whole blocks.
    pub(crate) const fn bytes(self, rows: usize) -> usize {
        let of_group = match self.weight_kind {
            WeightKind::Bytes => size_of::<f32>() + size_of::<i32>(),
            WeightKind::Nibbles => 2 * size_of::<f32>() + size_of::<i32>(),
        };
        let block = BLOCK * self.digits() + GROUPS * of_group;
        rows * (self.blocks() * block + size_of::<f32>())
    }
}

/// An operand in memory.
#[derive(Clone, Copy)]
pub(super) struct Operand {
    digits: *const i8,
    scales: *const f32,
    offsets: *const i32,
    sums: *const f32,
    group_sums: *const f32,
    /// Number of rows of the whole operand.
    rows: usize,
    digit_count: usize,
}

impl Operand {
    /// The operand at `bits`, of [`Rounded::bytes`] bytes.
    pub(super) fn new(form: Rounded, rows: usize, bits: *const u8) -> Self {
        let lines = rows * form.blocks();
        let scales = bits.wrapping_add(lines * form.digits() * BLOCK);
        let offsets = scales.wrapping_add(lines * GROUPS * size_of::<f32>());
        let sums = offsets.wrapping_add(lines * GROUPS * size_of::<i32>());
        let group_sums = sums.wrapping_add(rows * size_of::<f32>());
        Self {
            digits: bits.cast(),
            scales: scales.cast(),
            offsets: offsets.cast(),
            sums: sums.cast(),
            group_sums: group_sums.cast(),
            rows,
            digit_count: form.digits(),
        }
    }

    /// The rows from `first` on.
    pub(super) fn starting_at(self, first: usize) -> Self {
        let groups = first * GROUPS;
        Self {
            digits: self.digits.wrapping_add(first * self.digit_count * BLOCK),
            scales: self.scales.wrapping_add(groups),
            offsets: self.offsets.wrapping_add(groups),
            sums: self.sums.wrapping_add(first),
            group_sums: self.group_sums.wrapping_add(groups),
            ..self
        }
    }

    /// Digits of a row in a block.
    #[inline(always)]
    pub(super) fn digits(&self, block: usize, row: usize) -> *const i8 {
        let line = (block * self.rows + row) * self.digit_count;
        self.digits.wrapping_add(line * BLOCK)
    }

    /// Scales of a row in a block.
    #[inline(always)]
    pub(super) fn scales(&self, block: usize, row: usize) -> *const f32 {
        self.scales.wrapping_add((block * self.rows + row) * GROUPS)
    }

    /// Offsets of a row in a block.
    #[inline(always)]
    pub(super) fn offsets(&self, block: usize, row: usize) -> *const i32 {
        self.offsets
            .wrapping_add((block * self.rows + row) * GROUPS)
    }

    /// Group sums of a row in a block, for operands of nibbles.
    #[inline(always)]
    pub(super) fn group_sums(&self, block: usize, row: usize) -> *const f32 {
        self.group_sums
            .wrapping_add((block * self.rows + row) * GROUPS)
    }

    /// Sum of a row.
    #[inline(always)]
    pub(super) fn sum(&self, row: usize) -> *const f32 {
        self.sums.wrapping_add(row)
    }
}

/// Rounds one row of an operand, of `form.digits()` digits.
///
/// Plain Rust, which each instruction set vectorises: every operation is exact or rounded once.
///
/// # Safety
///
/// `x` has `form.width` elements, `operand` the bytes of an operand of `rows` rows, and `row` is less than `rows`.
#[inline(always)]
pub(super) unsafe fn round<const DIGITS: usize>(
    form: Rounded,
    rows: usize,
    row: usize,
    x: *const f32,
    operand: *mut u8,
) {
    // SAFETY: the contract is the same.
    unsafe {
        match form.weight_kind {
            WeightKind::Bytes => round_for::<DIGITS, false>(form, rows, row, x, operand),
            WeightKind::Nibbles => round_for::<DIGITS, true>(form, rows, row, x, operand),
        }
    }
}

/// [`round`] for weights that are nibbles, or for bytes. A function each: where both orders of digits are at hand, the compiler
/// takes a group apart byte by byte, and what it stored as vectors is loaded across their borders, at ten times the cost.
///
/// # Safety
///
/// As [`round`].
#[inline(always)]
unsafe fn round_for<const DIGITS: usize, const NIBBLES: bool>(
    form: Rounded,
    rows: usize,
    row: usize,
    x: *const f32,
    operand: *mut u8,
) {
    let operand = Operand::new(form, rows, operand);
    let mut sum = 0.0_f32;
    for group in 0..form.blocks() * GROUPS {
        let (block, half) = (group / 2, group % 2);
        let mut elements = [0.0; GROUP];
        let present = form.width.saturating_sub(group * GROUP).min(GROUP);
        // SAFETY: `present` elements of the row are in this group, and the operand has every group of the row.
        unsafe {
            let from = x.wrapping_add(group * GROUP);
            match present {
                GROUP => elements.copy_from_slice(&*from.cast::<[f32; GROUP]>()),
                _ => std::ptr::copy_nonoverlapping(from, elements.as_mut_ptr(), present),
            }
            let rounded = RoundedGroup::<DIGITS>::of(&elements);
            let digits = operand.digits(block, row).cast_mut();
            for (digit, bytes) in rounded.digits.iter().enumerate() {
                let to = digits.add(digit * BLOCK + half * GROUP);
                to.cast::<[i8; GROUP]>().write(match NIBBLES {
                    false => *bytes,
                    true => evens_first(bytes),
                });
            }
            let scales = operand.scales(block, row).cast_mut();
            scales.add(half).write(rounded.scale);
            let offsets = operand.offsets(block, row).cast_mut();
            offsets.add(half).write(rounded.sum.wrapping_mul(-128));
            let of_group = rounded.sum as f32 * rounded.scale;
            if NIBBLES {
                let sums = operand.group_sums(block, row).cast_mut();
                sums.add(half).write(of_group);
            }
            sum += of_group;
        }
    }
    // SAFETY: the operand has a sum for each row.
    unsafe { operand.sum(row).cast_mut().write(sum) };
}

/// Reads what the integers of a row of an operand stand for.
///
/// # Safety
///
/// `operand` has the bytes of an operand of `rows` rows, and `row` is less than `rows`.
pub(crate) unsafe fn read_operand(
    form: Rounded,
    rows: usize,
    row: usize,
    operand: *const u8,
    into: &mut [f32],
) {
    let operand = Operand::new(form, rows, operand);
    for (column, x) in into.iter_mut().enumerate().take(form.width) {
        let (block, half) = (column / BLOCK, column % BLOCK / GROUP);
        let place = half * GROUP + place_in_group(form.weight_kind, column % GROUP);
        // SAFETY: the operand has all columns of its rows, and a scale for each of their groups.
        let (q, scale) = unsafe {
            let digits = operand.digits(block, row).add(place);
            let first = i32::from(digits.read());
            let q = match form.bits {
                Bits::Eight => first,
                Bits::Sixteen => first * BASE + i32::from(digits.add(BLOCK).read()),
            };
            (q, operand.scales(block, row).add(half).read())
        };
        *x = q as f32 * scale;
    }
}

/// The place of a column among the digits of its group: see [`evens_first`].
fn place_in_group(weight_kind: WeightKind, column: usize) -> usize {
    match weight_kind {
        WeightKind::Bytes => column,
        WeightKind::Nibbles => column % 2 * (GROUP / 2) + column / 2,
    }
}

/// Reorders digits: even columns, then odd ones.
#[inline(always)]
fn evens_first(digits: &[i8; GROUP]) -> [i8; GROUP] {
    let mut ordered = [0; GROUP];
    for pair in 0..GROUP / 2 {
        ordered[pair] = digits[2 * pair];
        ordered[GROUP / 2 + pair] = digits[2 * pair + 1];
    }
    ordered
}

/// A group of a row, rounded.
struct RoundedGroup<const DIGITS: usize> {
    digits: [[i8; GROUP]; DIGITS],
    scale: f32,
    /// Sum of the integers.
    sum: i32,
}

impl<const DIGITS: usize> RoundedGroup<DIGITS> {
    /// Rounds a group. If an element is not finite, the scale is NaN; if all are too small to divide by, everything is
    /// zero.
    #[inline(always)]
    fn of(elements: &[f32; GROUP]) -> Self {
        // The bits of magnitudes have the order of floats, and NaN is the largest. Loops, because `map` of arrays is
        // not inlined, and code that is not inlined is compiled without the instructions.
        let mut largest = 0;
        for x in elements {
            largest = u32::max(largest, x.to_bits() & 0x7fff_ffff);
        }
        let largest = f32::from_bits(largest);
        let steps = match DIGITS {
            1 => DIGIT_MAX,
            _ => DIGIT_MAX * (BASE + 1),
        } as f32;
        let inverse = match steps / largest {
            inverse if inverse.is_finite() => inverse,
            _ => 0.0,
        };
        let mut digits = [[0; GROUP]; DIGITS];
        let mut sum = 0_i32;
        for (column, x) in elements.iter().enumerate() {
            let q = nearest(x * inverse);
            sum = sum.wrapping_add(q);
            match DIGITS {
                1 => digits[0][column] = q as i8,
                _ => {
                    let high = nearest(q as f32 * (1.0 / BASE as f32));
                    digits[0][column] = high as i8;
                    digits[1][column] = q.wrapping_sub(high.wrapping_mul(BASE)) as i8;
                }
            }
        }
        Self {
            digits,
            scale: if largest.is_finite() {
                largest / steps
            } else {
                f32::NAN
            },
            sum,
        }
    }
}

/// Rounds to the nearest integer, ties to even, of magnitude below 2²².
#[inline(always)]
fn nearest(x: f32) -> i32 {
    // Neighbouring floats from 2²³ to 2²⁴ are one apart, and so are their bits.
    const SHIFT: f32 = 12_582_912.0;
    ((x + SHIFT).to_bits() as i32).wrapping_sub(SHIFT.to_bits() as i32)
}
