// Names of a grid's rows and loads of these, for AVX2 and AVX-512. A file that includes this
// defines OP and UNROLL.

// eights are two rows of eight bytes, fours four of four that numbers of 8 or 16 bits at p name.
OP __m128i eights(const uint8_t *grid, uint64_t rows) {
	const double *v[2];
	UNROLL for (int n = 0; n < 2; n++) v[n] = (const double *)(grid + 8 * (long)(uint16_t)(rows >> (16 * n)));
	return _mm_castpd_si128(_mm_loadh_pd(_mm_load_sd(v[0]), v[1]));
}
OP __m128i fours(const uint8_t *grid, const uint8_t *p, int bits) {
	const uint64_t rows = bits == 8 ? u32_at(p) : u64_at(p);
	int v[4];
	UNROLL for (int n = 0; n < 4; n++) memcpy(&v[n], grid + 4 * (long)(rows >> (bits * n) & ((1 << bits) - 1)), 4);
	return _mm_insert_epi32(_mm_insert_epi32(_mm_insert_epi32(_mm_cvtsi32_si128(v[0]), v[1], 1), v[2], 2), v[3], 3);
}

// quads are eight numbers of four bytes, apart, the first at p. Between those that are 8 apart it
// reads what lies before each (-4), or after it.
OP __m256i quads(const uint8_t *p, int apart, int between) {
	if (apart == 4) return _mm256_loadu_si256((const __m256i *)p);
	const float *from = (const float *)(between < 0 ? p - 4 : p);
	const __m256 a = _mm256_loadu_ps(from), b = _mm256_loadu_ps(from + 8);
	const __m256 v = between < 0 ? _mm256_shuffle_ps(a, b, 0xDD) : _mm256_shuffle_ps(a, b, 0x88);
	return _mm256_permute4x64_epi64(_mm256_castps_si256(v), 0xD8);
}

// The bits of each number are moved to the top of 16, then down.
OP void places(uint64_t *rows, const uint8_t *q, int apart, const uint8_t *h, int step, int bits, int next) {
	const __m256i low = quads(q, apart, 4);
	const int per = step == 2 || bits == 2 ? 4 : 8; // names that have their bits in one step
	const long long one = 0x0001000100010001, second = per == 4 ? one : 0;
	uint64_t up[2] = {0, 0};
	UNROLL for (int i = 0; i < 8; i++) up[i / 4] |= (uint64_t)(1 << (16 - bits - next * (i % per))) << (16 * (i % 4));
	UNROLL for (int n = 0; n < 2; n++) {
		__m256i v = _mm256_cvtepu8_epi16(n ? _mm256_extracti128_si256(low, 1) : _mm256_castsi256_si128(low));
		if (bits) {
			__m256i high = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)h));
			// of each name the number of its byte, or of its two
			__m256i from = _mm256_setr_epi64x(0, second, one + second, one + 2 * second);
			from = _mm256_add_epi16(from, _mm256_set1_epi16((short)(16 / per * n)));
			from = _mm256_mullo_epi16(from, _mm256_set1_epi16(step == 2 ? 0x0202 : 1));
			from = _mm256_or_si256(from, _mm256_set1_epi16(step == 2 ? 0x0100 : (short)0x8000));
			high = _mm256_shuffle_epi8(high, from);
			high = _mm256_mullo_epi16(high, _mm256_broadcastsi128_si256(_mm_set_epi64x((long long)up[1], (long long)up[0])));
			v = _mm256_or_si256(v, _mm256_slli_epi16(_mm256_srli_epi16(high, 16 - bits), 8));
		}
		_mm256_storeu_si256((__m256i *)(rows + 4 * n), v);
	}
}

// store_evened is evened of 32 bytes.
OP void store_evened(uint64_t *signs, __m256i s) {
	__m256i odd = _mm256_xor_si256(s, _mm256_srli_epi16(s, 4));
	odd = _mm256_xor_si256(odd, _mm256_srli_epi16(odd, 2));
	odd = _mm256_and_si256(_mm256_xor_si256(odd, _mm256_srli_epi16(odd, 1)), _mm256_set1_epi8(1));
	_mm256_storeu_si256((__m256i *)signs, _mm256_or_si256(s, _mm256_slli_epi16(odd, 7)));
}
OP void sevens(const uint8_t *p, int apart, uint64_t *signs) {
	__m256i a = quads(p, apart, -4), s = _mm256_and_si256(a, _mm256_set1_epi32(0x7F));
	UNROLL for (int i = 1; i < 4; i++)
		s = _mm256_or_si256(s, _mm256_and_si256(_mm256_slli_epi32(a, i), _mm256_set1_epi32(0x7F << (8 * i))));
	store_evened(signs, s);
}
OP void nines(uint64_t *rows, const uint8_t *p, uint64_t *signs) {
	__m256i v[2];
	UNROLL for (int n = 0; n < 2; n++) {
		v[n] = _mm256_loadu_si256((const __m256i *)p + n);
		_mm256_storeu_si256((__m256i *)rows + n, _mm256_and_si256(v[n], _mm256_set1_epi16(511)));
		v[n] = _mm256_srli_epi16(v[n], 9);
	}
	store_evened(signs, _mm256_permute4x64_epi64(_mm256_packus_epi16(v[0], v[1]), 0xD8));
}

OP void highest(const uint8_t *p, uint64_t *set) {
	const __m256i b = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)p));
	const __m256i v = _mm256_or_si256(_mm256_slli_epi16(b, 4), _mm256_slli_epi16(b, 8));
	_mm256_storeu_si256((__m256i *)set, _mm256_cmpgt_epi8(_mm256_setzero_si256(), v));
}

OP uint64_t odds(const uint8_t *p) {
	__m128i v = _mm_srli_epi16(_mm_loadu_si128((const __m128i *)p), 8);
	return (uint64_t)_mm_cvtsi128_si64(_mm_packus_epi16(v, v));
}

// nibbles16 are those of eight bytes, the lower of a byte first.
OP __m128i nibbles16(const uint8_t *p) {
	const __m128i b = _mm_loadl_epi64((const __m128i *)p), mask = _mm_set1_epi8(15);
	return _mm_unpacklo_epi8(_mm_and_si128(b, mask), _mm_and_si128(_mm_srli_epi16(b, 4), mask));
}
