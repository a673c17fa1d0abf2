// IQ2_XXS: codes stand for eight values each. Included by weights.glsl.
#ifndef LIB_IQ2_XXS_GLSL
#define LIB_IQ2_XXS_GLSL

// A row of IQ2_XXS's grid is eight of three values, each in two bits: half a word, two rows a word.
const uint IQ2_XXS_GRID[128] = uint[128](
    0x00020000u, 0x00080005u, 0x0011000Au, 0x00200014u, 0x00280022u, 0x0041002Au, 0x00500044u, 0x00610058u,
    0x00800064u, 0x008A0082u, 0x010100A2u, 0x01100104u, 0x01400115u, 0x01980184u, 0x02020200u, 0x02820222u,
    0x04040401u, 0x04210410u, 0x04400424u, 0x04480442u, 0x04810460u, 0x04900484u, 0x050004A4u, 0x05080502u,
    0x05460520u, 0x05800569u, 0x06090591u, 0x06400610u, 0x06A40684u, 0x08050800u, 0x08140808u, 0x08410828u,
    0x08500844u, 0x08880852u, 0x09400904u, 0x0A140A02u, 0x10041001u, 0x10211010u, 0x10601040u, 0x10901084u,
    0x11001095u, 0x11201108u, 0x115A1150u, 0x12241180u, 0x14001245u, 0x14201408u, 0x14491425u, 0x15181480u,
    0x16001562u, 0x18011616u, 0x18101804u, 0x18811840u, 0x19051900u, 0x1A5119A0u, 0x20022000u, 0x2044200Au,
    0x20802061u, 0x21292082u, 0x22002148u, 0x24012202u, 0x24102404u, 0x24562440u, 0x25412500u, 0x26902564u,
    0x28202808u, 0x2A442894u, 0x40044001u, 0x40184010u, 0x40244021u, 0x40484040u, 0x40604056u, 0x40844081u,
    0x41004090u, 0x41614120u, 0x41854180u, 0x42104201u, 0x42564248u, 0x44004268u, 0x44204408u, 0x44994480u,
    0x45244512u, 0x48014600u, 0x48104804u, 0x48454840u, 0x49584900u, 0x49824961u, 0x4A904A45u, 0x50085000u,
    0x50195011u, 0x50805020u, 0x51045088u, 0x51A45142u, 0x54905291u, 0x550A5492u, 0x56545601u, 0x58115800u,
    0x58645819u, 0x5A085940u, 0x60106004u, 0x60686040u, 0x61556100u, 0x62606218u, 0x64056400u, 0x65126510u,
    0x68426584u, 0x80028000u, 0x8041800Au, 0x81048082u, 0x81408118u, 0x84018211u, 0x84108404u, 0x84408415u,
    0x85008460u, 0x85948546u, 0x86408609u, 0x88028660u, 0x8A118904u, 0x90109004u, 0x90409024u, 0x911690A1u,
    0x92459180u, 0x94229400u, 0x95519444u, 0x99209881u, 0xA050A002u, 0xA109A085u, 0xA418A200u, 0xA904A850u);
shared uvec2 grid_s[FORMAT == IQ2_XXS ? 256u : 1u];

// make_grid brings the rows to shared memory: a byte is a value, of each four first the first, the
// third, the second and the fourth. Every invocation of the workgroup has to call it.
void make_grid() {
    if (FORMAT != IQ2_XXS) return;
    for (uint row = gl_LocalInvocationIndex; row < 256u; row += gl_WorkGroupSize.x) {
        const uint codes = IQ2_XXS_GRID[row / 2u] >> (row % 2u * 16u);
        uvec2 made = uvec2(0u);
        [[unroll]] for (uint i = 0u; i < 8u; i++) {
            const uint code = codes >> (2u * i) & 3u, at = ((i & 1u) << 4) | ((i & 2u) << 2);
            made[i / 4u] |= (8u + 17u * code + code / 2u) << at;
        }
        grid_s[row] = made;
    }
    barrier();
}

// iq2_xxs_2: two values of a grid, negated where bits 0 and 1 of signs say so.
vec2 iq2_xxs_2(uint pair, uint signs) {
    const uint minus = ((signs << 15) | (signs << 30)) & 0x80008000u;
    if (HALVES == 1u) return unpackHalf2x16(pair | minus);
    const vec2 v = whole(pair);
    return vec2((minus & 0x8000u) != 0u ? -v.x : v.x, minus >> 31 != 0u ? -v.y : v.y);
}

// iq2_xxs_8: a word has four rows of the grid; the next has seven bits of signs for each, of which
// an eighth makes the number even.
void iq2_xxs_8(uint rows, uint signs, uint j, out float v[8]) {
    const uvec2 g = grid_s[rows >> (8u * j) & 0xFFu];
    uint s = signs >> (7u * j) & 127u;
    s |= (bitCount(s) & 1u) << 7;
    const vec2 a = iq2_xxs_2(g.x & 0x00FF00FFu, s), b = iq2_xxs_2(g.x >> 8 & 0x00FF00FFu, s >> 2);
    const vec2 c = iq2_xxs_2(g.y & 0x00FF00FFu, s >> 4), d = iq2_xxs_2(g.y >> 8 & 0x00FF00FFu, s >> 6);
    v = float[8](a.x, a.y, b.x, b.y, c.x, c.y, d.x, d.y);
}

#endif
