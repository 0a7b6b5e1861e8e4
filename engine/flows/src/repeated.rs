//! Lists in which nothing may stand twice.

/// What stands more than once in a list, if anything does. Lists in ascending order, and those of one, are not copied.
pub(crate) fn repeated<T: Copy + Ord>(list: &[T]) -> Option<T> {
    if list.is_sorted_by(|one, next| one < next) {
        return None;
    }
    let mut sorted = list.to_vec();
    sorted.sort_unstable();
    sorted.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
}

#[cfg(test)]
mod tests {
    use super::repeated;

    #[test]
    fn what_stands_twice_is_found_wherever_it_stands() {
        for list in [&[][..], &[7], &[1, 2, 9], &[9, 1, 2], &[3, 2, 1]] {
            assert_eq!(repeated(list), None, "{list:?}");
        }
        for list in [&[7, 7][..], &[1, 7, 7, 9], &[7, 1, 7], &[9, 7, 1, 7]] {
            assert_eq!(repeated(list), Some(7), "{list:?}");
        }
    }
}
